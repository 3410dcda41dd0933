// Elements by name, children and class. Strings become text, never HTML.

export function made(tag, children = [], className = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  let text = ""; // neighbouring strings become one node
  for (const child of children) {
    if (typeof child === "string") {
      text += child;
      continue;
    }
    if (text) element.append(text);
    element.append(child);
    text = "";
  }
  if (text) element.append(text);
  return element;
}

export function picture(url, description) {
  return Object.assign(made("img"), { src: url, alt: description });
}

export function button(label, action, className = "", title = "") {
  const element = made("button", [label], className);
  element.type = "button";
  if (title) {
    element.title = title;
    element.setAttribute("aria-label", title);
  }
  element.addEventListener("click", action);
  return element;
}
