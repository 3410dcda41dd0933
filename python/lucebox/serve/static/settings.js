// The settings below the prompt, of the open chat or of new chats, and a request made of them. Those of new chats are kept
// in localStorage; the API key is not kept.
import { chosenModel } from "/static/models.js";

const NAME = "settings";
const $ = (id) => document.getElementById(id);
const fields = [...document.querySelectorAll("#controls input[name], #thinking, #system, #tools")];
const nameOf = (field) => field.name || field.id;

export function startSettings(onSettings) {
  $("controls").addEventListener("change", ({ target }) => {
    if (fields.includes(target)) onSettings(settings());
  });
}

export function settings() {
  const filled = fields.filter(({ value }) => value !== "");
  return Object.fromEntries(filled.map((field) => [nameOf(field), field.value]));
}

export function showSettings(values, whose) {
  for (const field of fields) field.value = values[nameOf(field)] ?? "";
  $("whose").textContent = whose;
}

export function newChatSettings() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {}; // the browser keeps nothing for this page
  }
}

export const keepNewChatSettings = (values) => localStorage.setItem(NAME, JSON.stringify(values));

// The request for an answer to messages.
export function requestOf(messages) {
  const system = $("system").value.trim();
  const all = system ? [{ role: "system", content: system }, ...messages] : messages;
  const usage = { include_usage: true, continuous_usage_stats: true };
  const body = { messages: all, stream: true, stream_options: usage };
  if (chosenModel() !== null) body.model = chosenModel();
  for (const field of fields) if (field.name && field.value !== "") body[field.name] = Number(field.value);
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
