"""Hold a conversation of two turns.

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
        answer = llm.chat(messages, max_tokens=100)
        messages.append(answer.message)
        print(f"> {question}\n{answer.text}\n")
