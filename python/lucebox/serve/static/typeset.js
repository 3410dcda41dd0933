// Formulas by KaTeX, which is loaded with the first one. Until then, and where KaTeX cannot read one, its source is shown.
import { made } from "/static/elements.js";

const FOLDER = "/static/vendor/katex";
const MAX_LENGTH = 4000; // of a formula
const MAX_KEPT = 500;
const PAUSE_MS = 8; // of typesetting at a time: the page stays responsive
const OPTIONS = { output: "htmlAndMathml", strict: "ignore", trust: false, maxSize: 20, maxExpand: 500 };
const kept = new Map(); // source and form -> element, for the blocks that are made anew while a text grows
const waiting = []; // [element, source, isBlock]
let loading = null;

// A formula as an element; isBlock: on a line of its own.
export function formula(source, isBlock) {
  const element = made(isBlock ? "div" : "span", [source], isBlock ? "formula block" : "formula");
  if (source.length > MAX_LENGTH) return element;
  const ready = kept.get(keyOf(source, isBlock));
  if (ready) {
    element.replaceChildren(ready.cloneNode(true));
    return element;
  }
  waiting.push([element, source, isBlock]);
  loading ??= load();
  if (waiting.length === 1) loading.then(typesetSome, giveUp);
  return element;
}

const keyOf = (source, isBlock) => `${isBlock}${source}`;

async function load() {
  const style = made("link");
  Object.assign(style, { rel: "stylesheet", href: `${FOLDER}/katex.min.css` });
  document.head.append(style);
  await import(`${FOLDER}/katex.min.js`);
}

function giveUp() {
  waiting.length = 0;
  loading = null; // the next formula tries again
}

function typesetSome() {
  const start = performance.now();
  while (waiting.length && performance.now() - start < PAUSE_MS) typeset(...waiting.shift());
  if (waiting.length) setTimeout(typesetSome);
}

function typeset(element, source, isBlock) {
  const box = made("span");
  try {
    globalThis.katex.render(source, box, { ...OPTIONS, displayMode: isBlock });
  } catch (error) {
    element.title = error.message; // what is no formula stays text
    return;
  }
  if (kept.size === MAX_KEPT) kept.delete(kept.keys().next().value);
  kept.set(keyOf(source, isBlock), box);
  element.replaceChildren(box.cloneNode(true));
}
