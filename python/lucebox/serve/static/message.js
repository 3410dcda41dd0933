// Shows messages. The user's text stays text; the model's is Markdown.
import { imagesOf, textOf } from "/static/content.js";
import { copyButton } from "/static/copy.js";
import { button, made, picture } from "/static/elements.js";
import { MarkdownView } from "/static/markdown.js";

const SPEED_MS = 3000; // the speed shown is of the last seconds

// Arrows between the branches that begin with a turn: its number and their count.
class BranchSwitch {
  constructor(step) {
    this.count = made("span");
    const [back, on] = [button("‹", () => step(-1), "", "Previous branch"), button("›", () => step(1), "", "Next branch")];
    this.element = made("span", [back, this.count, on], "branches change");
    this.show(1, 1);
  }

  show(number, count) {
    this.element.hidden = count === 1;
    this.count.textContent = `${number}/${count}`;
    this.element.firstChild.disabled = number === 1;
    this.element.lastChild.disabled = number === count;
  }
}

// A small picture that a click shows large, and another click small again.
function thumbnail(url, name) {
  const shown = button("", () => shown.setAttribute("aria-pressed", shown.getAttribute("aria-pressed") !== "true"));
  shown.setAttribute("aria-pressed", "false");
  shown.setAttribute("aria-label", name);
  shown.append(picture(url, name));
  return shown;
}

export class UserView {
  constructor({ typed, files = [], message }, { edit, step }) {
    this.branches = new BranchSwitch(step);
    const attached = files.map(({ name, text }) =>
      made("details", [made("summary", [name]), made("pre", [text])], "file"),
    );
    const images = imagesOf(message).map((url, i) => thumbnail(url, `Image ${i + 1}`));
    const text = made("div", [typed ?? textOf(message)], "text");
    text.hidden = text.textContent === "";
    const actions = [this.branches.element, button("Edit", edit, "change"), copyButton(() => textOf(message))];
    const parts = [...(images.length ? [made("div", images, "images")] : []), ...attached, text];
    this.element = made("article", [...parts, made("div", actions, "actions")], "message user");
  }
}

export class ResultView {
  constructor({ message }, { step }) {
    this.branches = new BranchSwitch(step);
    const actions = made("div", [this.branches.element], "actions");
    this.element = made("article", [made("div", [message.content], "text"), actions], "message result");
  }
}

// An answer, which may grow: folded thinking, text, tool calls, and statistics at the end.
export class AnswerView {
  constructor({ regenerate, goOn, sendResults, step, progress = () => null }) {
    this.sendResults = sendResults;
    this.progress = progress;
    this.branches = new BranchSwitch(step);
    this.thinking = made("details", [made("summary", ["thinking …"]), made("div", [], "markdown")]);
    this.text = made("div", [], "markdown");
    this.calls = made("div");
    this.failure = made("p", [], "problem");
    this.note = made("span", [], "note");
    this.goOn = button("Continue", goOn, "change", "Continue this answer");
    const again = button("Regenerate", regenerate, "change");
    const actions = [copyButton(() => this.content), again, this.goOn, this.branches.element, this.note];
    this.actions = made("div", actions, "actions");
    const parts = [this.thinking, this.text, this.calls, this.failure, this.actions];
    this.element = made("article", parts, "message assistant");
    this.reasoningView = new MarkdownView(this.thinking.lastChild);
    this.textView = new MarkdownView(this.text);
    this.timer = null; // of the next time that text is shown
    this.pause = 0;
    this.restart(null);
  }

  static restored(turn, handlers) {
    const view = new AnswerView(handlers);
    view.put(turn.message);
    view.base = turn.base?.content ?? "";
    view.usage = turn.usage ?? null;
    view.reason = turn.reason ?? null;
    if (!turn.stream) view.close(turn.note ?? "", turn.failure);
    return view;
  }

  // Begins with nothing, or with a message that the answer continues.
  restart(base) {
    clearTimeout(this.timer);
    this.timer = null;
    this.base = base?.content ?? "";
    this.content = "";
    this.reasoning = "";
    this.toolCalls = [];
    this.calls.replaceChildren();
    this.form?.remove();
    this.form = null;
    this.startedAt = performance.now();
    this.firstAt = null;
    this.reason = null;
    this.usage = null;
    this.timings = null;
    this.samples = []; // [time, tokens so far]
    this.note.textContent = this.failure.textContent = "";
    this.goOn.hidden = true;
    this.put(base ?? { content: "" });
  }

  put({ content, reasoning_content: reasoning, tool_calls: calls }) {
    this.content = content;
    this.reasoning = reasoning ?? "";
    for (const [index, call] of (calls ?? []).entries()) this.addCall({ index, ...call });
    this.showText();
  }

  // Whether nothing has come yet, beside what it continues.
  get isEmpty() {
    return this.content === this.base && (!this.reasoning || this.base !== "") && this.toolCalls.length === 0;
  }

  take(event) {
    this.usage = event.usage ?? this.usage;
    this.timings = event.timings ?? this.timings;
    if (event.usage) this.showProgress();
    const choice = event.choices[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls) this.firstAt ??= performance.now();
    for (const call of calls ?? []) this.addCall(call);
    if (!content && !reasoning) return;
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    this.timer ??= setTimeout(() => this.showText(), this.pause);
  }

  showProgress() {
    const now = performance.now();
    this.samples.push([now, this.usage.completion_tokens]);
    while (this.samples.length > 2 && now - this.samples[0][0] > SPEED_MS) this.samples.shift();
    const [[start, first], [end, last]] = [this.samples[0], this.samples.at(-1)];
    this.progress(this.usage, end > start ? (1000 * (last - first)) / (end - start) : null);
  }

  // Takes a tenth of the time at most, however long the text is.
  showText() {
    const start = performance.now();
    this.timer = null;
    this.thinking.hidden = this.reasoning === "";
    this.thinking.firstChild.textContent = this.content ? "thinking" : "thinking …";
    this.reasoningView.show(this.reasoning);
    this.textView.show(this.content);
    this.pause = 9 * (performance.now() - start);
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
    this.setLast(true);
  }

  fail(error) {
    const isStopped = error.name === "AbortError";
    this.reason = null;
    this.close([isStopped ? "stopped" : "failed", ...this.numbers()].join(" · "), isStopped ? "" : error.message);
  }

  close(note, failure = "") {
    clearTimeout(this.timer);
    this.showText();
    this.thinking.firstChild.textContent = "thinking";
    this.note.textContent = note;
    this.failure.textContent = failure;
    this.goOn.hidden = !this.content.trim() || this.toolCalls.length > 0 || this.reason === "stop";
  }

  numbers() {
    const numbers = [];
    if (this.firstAt !== null) numbers.push(`first token ${((this.firstAt - this.startedAt) / 1000).toFixed(2)} s`);
    if (this.usage) {
      const { prompt_tokens: prompt, completion_tokens: generated, prompt_tokens_details: details } = this.usage;
      const cached = details ? `, ${details.cached_tokens ?? 0} of them cached` : "";
      numbers.push(`${prompt} prompt tokens${cached}`, `${generated} tokens`);
    }
    if (this.timings) numbers.push(`${this.timings.decode_tokens_per_second.toFixed(1)} tok/s`);
    if (this.timings?.verifies) numbers.push(`${this.timings.tokens_per_step.toFixed(2)} tokens per step`);
    return numbers;
  }

  // The last answer of a chat asks for the results of its calls.
  setLast(isLast) {
    const asks = isLast && this.reason === "tool_calls";
    if (asks && !this.form) this.element.insertBefore((this.form = this.resultForm()), this.actions);
    if (this.form) this.form.hidden = !asks;
  }

  resultForm() {
    const fields = this.toolCalls.map((call) => {
      const field = document.createElement("textarea");
      field.placeholder = `result of ${call.function.name}`;
      return field;
    });
    const form = made("form", [...fields, made("button", ["Send results"])]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.sendResults(fields.map((field, i) => ({ id: this.toolCalls[i].id, content: field.value })));
    });
    return form;
  }

  // The fields of the turn: `reason` is the protocol's finish reason, null where none came.
  kept() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.toolCalls.length) message.tool_calls = this.toolCalls;
    const { reason, usage } = this;
    return { message, reason, usage, note: this.note.textContent, failure: this.failure.textContent };
  }
}
