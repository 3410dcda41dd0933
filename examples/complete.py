"""Stream a completion and print its speed.

python examples/complete.py [MODEL]
"""

import sys

import lucebox

model = sys.argv[1] if len(sys.argv) > 1 else "tiny-hybrid"
prompt = 'def read_lines(path):\n    """Return the lines of a text file."""\n'

with lucebox.LLM(model) as llm:
    print(prompt, end="")
    for chunk in llm.generate(prompt, max_tokens=64, stream=True):
        print(chunk.text, end="", flush=True)
        if chunk.result:
            timings = chunk.result.timings
            print(f"\n\n{timings.decode_tokens} tokens, {timings.decode_tok_s:.0f} tokens/s")
