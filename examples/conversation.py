"""Hold a conversation of two turns. The second turn reuses the session state of the first.

python examples/conversation.py [MODEL]
"""

import sys

import lucebox

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
questions = ["What is the capital of France?", "Name a river that runs through it."]

with lucebox.LLM(model) as llm:
    messages = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = llm.chat(messages, lucebox.Sampling(max_tokens=100))
        messages.append({"role": "assistant", "content": answer.text})
        print(f"> {question}\n{answer.text}\n({answer.usage.cached_tokens} prompt tokens were reused)\n")
