"""Score a text: its perplexity, and the least likely tokens.

python examples/perplexity.py FILE [MODEL]
"""

import math
import sys
from pathlib import Path

import lucebox

text = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).read_text()
model = sys.argv[2] if len(sys.argv) > 2 else "tiny-hybrid"

with lucebox.LLM(model, activations="f32") as llm:
    ids = llm.tokenize(text)[: llm.memory_plan.context]
    scores = llm.score(ids)  # one per token after the first
    print(f"perplexity {math.exp(-sum(scores) / len(scores)):.2f} over {len(scores)} tokens")
    for logprob, token in sorted(zip(scores, ids[1:], strict=True))[:5]:
        print(f"{logprob:8.2f}  {llm.detokenize([token])!r}")
