// Keyboard shortcuts, and the dialog that lists them.
import { made } from "/static/elements.js";

const $ = (id) => document.getElementById(id);
const LISTED = [
  ["Enter", "send"],
  ["Shift+Enter", "add a line"],
  ["Esc", "stop the answer; else leave an edit"],
  ["↑ in an empty box", "edit the last prompt"],
  ["Ctrl+K", "search the chats"],
  ["Ctrl+Shift+O", "new chat"],
  ["?", "show these shortcuts"],
];

// actions: {escape, editLast, search, newChat}
export function startShortcuts(actions) {
  $("shortcuts").prepend(
    made("h2", ["Shortcuts"]),
    made("table", LISTED.map(([keys, what]) => made("tr", [made("td", [made("kbd", [keys])]), made("td", [what])]))),
  );
  $("help").addEventListener("click", () => $("shortcuts").showModal());
  addEventListener("keydown", (event) => {
    if ($("shortcuts").open || event.isComposing) return;
    const action = actionOf(event, actions);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function actionOf(event, { escape, editLast, search, newChat }) {
  const { key, target } = event;
  const isTyping = target.matches("textarea, input, select");
  if (key === "Escape") return escape;
  if ((event.ctrlKey || event.metaKey) && !event.altKey) {
    if (key.toLowerCase() === "k" && !event.shiftKey) return search;
    return key.toLowerCase() === "o" && event.shiftKey ? newChat : null;
  }
  if (key === "ArrowUp" && target === $("prompt") && target.value === "") return editLast;
  return key === "?" && !isTyping ? () => $("shortcuts").showModal() : null;
}
