// Renders messages. Model and user text is set as text, never as HTML.

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

export function showUser(text) {
  const made = element("div", "message user");
  made.append(element("div", "text", text));
  return made;
}

// A streamed answer: folded thinking, text, tool calls, and statistics at the end.
export class AnswerView {
  constructor(parent, sendResults) {
    this.parent = parent;
    this.sendResults = sendResults;
    this.element = element("div", "message assistant");
    this.thinking = element("details", "");
    this.thinking.append(element("summary", "", "thinking …"), element("div", "text"));
    this.text = element("div", "text");
    this.calls = element("div", "");
    this.note = element("div", "note");
    this.element.append(this.text, this.calls, this.note);
    parent.append(this.element);
    this.content = "";
    this.reasoning = "";
    this.toolCalls = [];
    this.startedAt = performance.now();
    this.firstAt = null;
    this.reason = null;
    this.usage = null;
    this.timings = null;
  }

  take(event) {
    this.usage = event.usage ?? this.usage;
    this.timings = event.timings ?? this.timings;
    const choice = event.choices[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls) this.firstAt ??= performance.now();
    this.following(() => {
      if (reasoning) this.addReasoning(reasoning);
      if (content) this.addText(content);
      for (const call of calls ?? []) this.addCall(call);
    });
  }

  // Scrolls along with the text, unless the user has scrolled up.
  following(change) {
    const { scrollHeight, scrollTop, clientHeight } = this.parent;
    change();
    if (scrollHeight - scrollTop - clientHeight < 60) this.parent.scrollTop = this.parent.scrollHeight;
  }

  addReasoning(piece) {
    if (!this.reasoning) this.element.prepend(this.thinking);
    this.reasoning += piece;
    this.thinking.lastChild.append(piece);
  }

  addText(piece) {
    this.thinking.firstChild.textContent = "thinking";
    this.content += piece;
    this.text.append(piece);
  }

  addCall({ index, id, function: { name, arguments: piece } }) {
    if (id) {
      const box = element("div", "call");
      box.append(element("b", "", name), element("pre", ""));
      this.calls.append(box);
      this.toolCalls[index] = { id, type: "function", function: { name, arguments: "" } };
    }
    this.toolCalls[index].function.arguments += piece ?? "";
    this.calls.children[index].lastChild.append(piece ?? "");
  }

  end(reason = this.reason, error = null) {
    this.following(() => {
      this.thinking.firstChild.textContent = "thinking";
      this.note.textContent = [reason, ...this.numbers()].join(" · ");
      if (reason === "failed") this.element.append(element("div", "failure", error.message));
      if (reason === "tool_calls") this.askForResults();
    });
  }

  numbers() {
    const numbers = [];
    if (this.firstAt !== null) numbers.push(`first token ${((this.firstAt - this.startedAt) / 1000).toFixed(2)} s`);
    if (this.usage) {
      const { prompt_tokens: prompt, completion_tokens: generated, prompt_tokens_details: details } = this.usage;
      numbers.push(`${prompt} prompt tokens, ${details?.cached_tokens ?? 0} of them cached`, `${generated} tokens`);
    }
    if (this.timings) numbers.push(`${this.timings.decode_tokens_per_second.toFixed(1)} tok/s`);
    if (this.timings?.verifies) numbers.push(`${this.timings.tokens_per_step.toFixed(2)} tokens per step`);
    return numbers;
  }

  askForResults() {
    const form = element("form", "");
    const fields = this.toolCalls.map((call) => {
      const field = document.createElement("textarea");
      field.placeholder = `result of ${call.function.name}`;
      form.append(field);
      return field;
    });
    form.append(element("button", "", "Send results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      this.sendResults(fields.map((field, i) => ({ id: this.toolCalls[i].id, content: field.value })));
    });
    this.element.append(form);
  }

  message() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.toolCalls.length) message.tool_calls = this.toolCalls;
    return message;
  }
}
