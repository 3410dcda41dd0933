// The settings below the prompt: kept in the browser, except the API key, and turned into a request's fields.
const NAME = "settings";
const $ = (id) => document.getElementById(id);
const fields = [...document.querySelectorAll("#controls input[name], #thinking, #system, #tools")];
const nameOf = (field) => field.name || field.id;

export function restoreSettings() {
  const values = kept();
  for (const field of fields) field.value = values[nameOf(field)] ?? "";
  $("controls").addEventListener("change", () => {
    localStorage.setItem(NAME, JSON.stringify(Object.fromEntries(fields.map((field) => [nameOf(field), field.value]))));
  });
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {}; // the browser keeps nothing for this page
  }
}

export function request(history) {
  const system = $("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...history] : history;
  const body = { messages, stream: true, stream_options: { include_usage: true } };
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
