// Buttons that copy text.
import { button } from "/static/elements.js";

export function copyButton(text) {
  return button("Copy", async ({ currentTarget: clicked }) => {
    clicked.textContent = (await isCopied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (clicked.textContent = "Copy"), 1500);
  });
}

// Browsers give the clipboard to loopback and HTTPS pages only; elsewhere a selected text field does the work.
async function isCopied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  return isDone;
}
