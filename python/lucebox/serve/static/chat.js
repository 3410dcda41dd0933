// The chat: a list of API messages, each with the element that shows it.
import { AnswerView, showUser } from "/static/message.js";
import { events } from "/static/server.js";

const $ = (id) => document.getElementById(id);
const history = []; // {message, element}
let abort = null; // AbortController of the running answer

export function startChat() {
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send($("prompt").value);
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
  $("stop").addEventListener("click", () => abort?.abort());
  $("again").addEventListener("click", regenerate);
  $("clear").addEventListener("click", () => truncate(0));
}

async function send(text) {
  if (abort || !text.trim()) return;
  $("prompt").value = "";
  append({ role: "user", content: text }, showUser(text));
  await answer();
}

async function regenerate() {
  const last = history.findLastIndex(({ message }) => message.role !== "assistant");
  if (abort || last < 0) return;
  truncate(last + 1);
  await answer();
}

async function answer() {
  abort = new AbortController();
  showState();
  const view = new AnswerView($("messages"), sendResults);
  try {
    for await (const event of events("/v1/chat/completions", request(), abort.signal)) view.take(event);
    view.end();
  } catch (error) {
    view.end(error.name === "AbortError" ? "stopped" : "failed", error);
  }
  history.push({ message: view.message(), element: view.element });
  abort = null;
  showState();
}

// Sends the results of the tool calls as the next messages.
async function sendResults(results) {
  for (const { id, content } of results) append({ role: "tool", tool_call_id: id, content }, showUser(content));
  await answer();
}

function request() {
  const body = { messages: history.map(({ message }) => message), stream: true, stream_options: { include_usage: true } };
  const system = $("system").value.trim();
  if (system) body.messages.unshift({ role: "system", content: system });
  for (const field of document.querySelectorAll("#controls input[name]")) {
    if (field.value !== "") body[field.name] = Number(field.value);
  }
  if ($("thinking").value) body.chat_template_kwargs = { enable_thinking: $("thinking").value === "on" };
  const tools = $("tools").value.trim();
  if (tools) body.tools = parsedTools(tools);
  return body;
}

function parsedTools(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`the tools are not JSON: ${error.message}`);
  }
}

function append(message, element) {
  $("messages").append(element);
  history.push({ message, element });
  element.scrollIntoView({ block: "end" });
}

function truncate(from) {
  for (const { element } of history.splice(from)) element.remove();
  showState();
}

function showState() {
  const isBusy = abort !== null;
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  for (const id of ["again", "clear"]) $(id).disabled = isBusy || history.length === 0;
}
