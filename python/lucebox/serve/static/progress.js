// The line above the prompt: the speed of a running answer, and how full the context is.
const $ = (id) => document.getElementById(id);
let context = null; // tokens that it holds
let used = null;

export function setContext(tokens) {
  context = tokens;
  show();
}

// usage: of the newest answer, null: none. speed: in tokens per second, null where nothing runs.
export function showUsage(usage, speed = null) {
  used = usage ? usage.prompt_tokens + usage.completion_tokens : null;
  $("speed").textContent = speed === null ? "" : `${speed.toFixed(1)} tok/s, ${usage.completion_tokens} tokens`;
  show();
}

function show() {
  const isKnown = used !== null && context !== null;
  $("fill").hidden = !isKnown;
  if (!isKnown) return;
  const share = Math.min(1, used / context);
  const number = (count) => count.toLocaleString("en");
  $("fill").lastChild.textContent = `context ${number(used)} / ${number(context)} (${(100 * share).toFixed(0)}%)`;
  $("fill").firstElementChild.value = share;
}
