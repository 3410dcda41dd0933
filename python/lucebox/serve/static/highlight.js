// Syntax colours by highlight.js, which is loaded with the first block of code in a language that it may know. Its tokens
// become elements; no text is read as HTML.
import { made } from "/static/elements.js";

const MAX_LENGTH = 50_000; // of a block: colouring takes linear time
const waiting = []; // [element, code, language]
let library = null;
let loading = null;

export function highlight(element, code, language) {
  if (!language || code.length > MAX_LENGTH) return;
  if (library) {
    colour(element, code, language);
    return;
  }
  waiting.push([element, code, language]);
  loading ??= import("/static/vendor/highlight/highlight.min.js").then(
    ({ default: loaded }) => {
      library = loaded;
      for (const one of waiting.splice(0)) colour(...one);
    },
    () => (loading = null),
  );
}

function colour(element, code, language) {
  if (!library.getLanguage(language)) return;
  const { _emitter: emitter } = library.highlight(code, { language, ignoreIllegals: true });
  element.replaceChildren(...nodesOf(emitter.rootNode));
}

// Tokens have a scope such as "title.function", an embedded language "language:css".
function nodesOf({ children }) {
  return children.map((child) => {
    if (typeof child === "string") return document.createTextNode(child);
    const isScope = child.scope && !child.scope.startsWith("language:");
    return made("span", nodesOf(child), isScope ? `hl-${child.scope.split(".")[0]}` : "");
  });
}
