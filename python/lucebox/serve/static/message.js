// Shows messages. The user's text stays text; the model's is Markdown.
import { copyButton } from "/static/copy.js";
import { button, made } from "/static/elements.js";
import { MarkdownView } from "/static/markdown.js";

export function userView(text, edit) {
  const actions = made("div", [button("Edit", edit, "change"), copyButton(() => text)], "actions");
  return made("article", [made("div", [text], "text"), actions], "message user");
}

export function resultView(text) {
  return made("article", [made("div", [text], "text")], "message result");
}

// A streamed answer: folded thinking, text, tool calls, and statistics at the end.
export class AnswerView {
  constructor({ regenerate, sendResults }) {
    this.sendResults = sendResults;
    this.thinking = made("details", [made("summary", ["thinking …"]), made("div", [], "text")]);
    this.thinking.hidden = true;
    this.text = made("div", [], "markdown");
    this.calls = made("div");
    this.failure = made("p", [], "problem");
    this.note = made("span", [], "note");
    const again = button("Regenerate", regenerate, "change");
    this.actions = made("div", [copyButton(() => this.content), again, this.note], "actions");
    const parts = [this.thinking, this.text, this.calls, this.failure, this.actions];
    this.element = made("article", parts, "message assistant");
    this.markdown = new MarkdownView(this.text);
    this.timer = null; // of the next time that text is shown
    this.pause = 0;
    this.content = "";
    this.reasoning = "";
    this.toolCalls = [];
    this.startedAt = performance.now();
    this.firstAt = null;
    this.reason = null;
    this.usage = null;
    this.timings = null;
  }

  // A view of what turn() gave; the last one asks for the results of its calls.
  static restored({ message, reason, note, failure }, isLast, handlers) {
    const view = new AnswerView(handlers);
    const calls = message.tool_calls?.map((call, index) => ({ index, ...call }));
    view.take({ choices: [{ delta: { ...message, tool_calls: calls }, finish_reason: reason }] });
    view.close(note, failure);
    if (isLast && reason === "tool_calls") view.askForResults();
    return view;
  }

  get isEmpty() {
    return !this.content && !this.reasoning && this.toolCalls.length === 0;
  }

  take(event) {
    this.usage = event.usage ?? this.usage;
    this.timings = event.timings ?? this.timings;
    const choice = event.choices[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls) this.firstAt ??= performance.now();
    if (reasoning) this.following(() => this.addReasoning(reasoning));
    for (const call of calls ?? []) this.following(() => this.addCall(call));
    if (!content) return;
    this.content += content;
    this.timer ??= setTimeout(() => this.showText(), this.pause);
  }

  // Scrolls along with the text, unless the user has scrolled up.
  following(change) {
    const parent = this.element.parentElement;
    const isAtEnd = parent !== null && parent.scrollHeight - parent.scrollTop - parent.clientHeight < 60;
    change();
    if (isAtEnd) parent.scrollTop = parent.scrollHeight;
  }

  // Takes a tenth of the time at most, however long the text is.
  showText() {
    const start = performance.now();
    this.timer = null;
    this.thinking.firstChild.textContent = "thinking";
    this.following(() => this.markdown.show(this.content));
    this.pause = 9 * (performance.now() - start);
  }

  addReasoning(piece) {
    this.thinking.hidden = false;
    this.reasoning += piece;
    this.thinking.lastChild.append(piece);
  }

  addCall({ index, id, function: { name, arguments: piece } }) {
    if (id) {
      this.calls.append(made("div", [made("b", [name]), made("pre")], "call"));
      this.toolCalls[index] = { id, type: "function", function: { name, arguments: "" } };
    }
    this.toolCalls[index].function.arguments += piece ?? "";
    this.calls.children[index].lastChild.append(piece ?? "");
  }

  end() {
    this.close([this.reason, ...this.numbers()].join(" · "));
    if (this.reason === "tool_calls") this.following(() => this.askForResults());
  }

  fail(error) {
    const isStopped = error.name === "AbortError";
    this.reason = null;
    this.close([isStopped ? "stopped" : "failed", ...this.numbers()].join(" · "), isStopped ? "" : error.message);
  }

  close(note, failure = "") {
    clearTimeout(this.timer);
    this.showText();
    this.following(() => {
      this.note.textContent = note;
      this.failure.textContent = failure;
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
    const fields = this.toolCalls.map((call) => {
      const field = document.createElement("textarea");
      field.placeholder = `result of ${call.function.name}`;
      return field;
    });
    const form = made("form", [...fields, made("button", ["Send results"])]);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const results = fields.map((field, i) => ({ id: this.toolCalls[i].id, content: field.value }));
      form.hidden = true;
      form.hidden = await this.sendResults(results);
    });
    this.element.insertBefore(form, this.actions);
  }

  // The turn, as it is kept: `reason` is the protocol's finish reason, null where none came.
  turn() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.toolCalls.length) message.tool_calls = this.toolCalls;
    const { reason, element } = this;
    return { message, reason, note: this.note.textContent, failure: this.failure.textContent, element };
  }
}
