// Markdown inside a block: code, formulas, emphasis, links. Untrusted text: nodes are made by name and text, never from HTML; the
// time is linear; at most MAX_OPEN brackets or emphases are open at once.
import { made } from "/static/elements.js";
import { formula } from "/static/typeset.js";

const MAX_OPEN = 32;
const MAX_FORMULA = 2000; // characters
const MAX_RUN = 8; // a longer run of * or _ is text
const URL_TOKEN = /https?:\/\/[\w!#$%&'()*+,\-./:;=?@~]+/;
const PLAIN = /(?:(?!https?:\/\/)[^\\`*_~![\]<$])+/;
const TOKEN = new RegExp(`\\\\[^]|\\$+|\`+|\\*+|_+|~+|!?\\[|\\]|<|${URL_TOKEN.source}|${PLAIN.source}|[^]`, "y");
const TARGET = /<([^<>\n]{0,2000})>|((?:[^\s()<>]|\([^\s()<>]{0,200}\)){0,2000})/;
const TITLE = /\s{1,9}(?:"[^"]{0,500}"|'[^']{0,500}')/;
const DESTINATION = new RegExp(`\\(\\s{0,9}(?:${TARGET.source})(?:${TITLE.source})?\\s{0,9}\\)`, "y");
const ADDRESS = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const LINE_BREAK = /<br ?\/?>/iy;
const SCHEMES = ["http:", "https:", "mailto:"];
const FORMULAS = new Map([
  ["$", { close: "$", isBlock: false, ends: /(?<![\s$\\])\$(?![\w$])/g }],
  ["$$", { close: "$$", isBlock: true, ends: /(?<![$\\])\$\$(?!\$)/g }],
  ["\\(", { close: "\\)", isBlock: false, ends: /\\\)/g }],
  ["\\[", { close: "\\]", isBlock: true, ends: /\\\]/g }],
]);
const ESCAPED = /\\([!-/:-@[-`{-~\n])/g;

// The nodes and strings of a text.
export function inline(text) {
  return emphasized(new Scanner(text).items());
}

class Scanner {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.found = []; // strings, nodes and runs of emphasis
    this.brackets = []; // the open ones: {at: index in found, isImage, isActive}
    this.lastRuns = new Map(); // length of a run of backticks: where the last one begins
    for (const run of text.matchAll(/`+/g)) this.lastRuns.set(run[0].length, run.index);
    this.closings = new Map(); // end of a formula -> where it stands, last first
  }

  items() {
    while (this.at < this.text.length) {
      const start = this.at;
      const [token] = this.match(TOKEN);
      if (token[0] === "`") this.takeCode(start, token);
      else if (FORMULAS.has(token)) this.takeFormula(token);
      else if (isEmphasis(token)) this.found.push(emphasisRun(this.text, start, token));
      else if (token === "[" || token === "![") this.openBracket(token);
      else if (token === "]") this.closeBracket();
      else if (token === "<") this.takeAngle(start);
      else if (/^https?:\/\/./.test(token) && token.length <= 2000) this.takeAddress(start, token);
      else this.found.push(unescaped(token).replaceAll(/ {1,99}\n/g, "\n"));
    }
    return this.found;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  takeCode(start, marks) {
    const isOpen = this.lastRuns.get(marks.length) > start;
    if (isOpen) this.at = closingRun(this.text, this.at, marks.length) + marks.length;
    this.found.push(isOpen ? code(this.text.slice(start + marks.length, this.at - marks.length)) : marks);
  }

  // $x$ is a formula, unless its inner side of a $ is white space, or a letter or digit is on the outer: prices are none.
  takeFormula(open) {
    const { close, isBlock, ends } = FORMULAS.get(open);
    const before = this.text[this.at - open.length - 1] ?? "";
    const isPrice = open === "$" && (/\w/.test(before) || /\s/.test(this.text[this.at] ?? " "));
    const end = isPrice ? -1 : this.closing(close, ends);
    const isNear = end > this.at && end - this.at <= MAX_FORMULA;
    const source = isNear ? this.text.slice(this.at, end) : "";
    if (!source.trim() || source.includes("`")) {
      this.found.push(unescaped(open));
      return;
    }
    this.at = end + close.length;
    this.found.push(formula(source.trim(), isBlock));
  }

  // Where the first end of a formula after this point stands, or -1.
  closing(close, ends) {
    if (!this.closings.has(close)) {
      this.closings.set(close, Array.from(this.text.matchAll(ends), ({ index }) => index).reverse());
    }
    const all = this.closings.get(close);
    while (all.length && all.at(-1) < this.at) all.pop();
    return all.at(-1) ?? -1;
  }

  openBracket(token) {
    if (this.brackets.length === MAX_OPEN) this.brackets.shift();
    this.brackets.push({ at: this.found.length, isImage: token === "![", isActive: true });
    this.found.push(token);
  }

  closeBracket() {
    const open = this.brackets.pop();
    const target = open?.isActive ? this.match(DESTINATION) : null;
    if (!target) {
      this.found.push("]");
      return;
    }
    const content = emphasized(this.found.splice(open.at).slice(1));
    this.found.push(link(unescaped(target[1] ?? target[2]), content));
    if (!open.isImage) for (const other of this.brackets) other.isActive &&= other.isImage; // no link inside a link
  }

  takeAngle(start) {
    this.at = start;
    const address = this.match(ADDRESS);
    if (address) this.found.push(link(address[1], [address[1]]));
    else if (this.match(LINE_BREAK)) this.found.push("\n");
    else {
      this.at = start + 1;
      this.found.push("<");
    }
  }

  takeAddress(start, token) {
    const address = withoutPunctuation(token);
    this.at = start + address.length;
    this.found.push(link(address, [address]));
  }
}

const isEmphasis = (token) => /^(\*+|_+|~~)$/.test(token) && token.length <= MAX_RUN;
const unescaped = (text) => text.replaceAll(ESCAPED, "$1");

function closingRun(text, at, length) {
  const runs = /`+/g;
  runs.lastIndex = at;
  for (;;) {
    const run = runs.exec(text);
    if (run[0].length === length) return run.index;
  }
}

function code(text) {
  const line = text.replaceAll("\n", " ");
  return made("code", [/^ .* $/.test(line) && line.trim() ? line.slice(1, -1) : line]);
}

// A link to another site, or the text alone for relative addresses and other schemes. Images are links: none is loaded.
function link(address, content) {
  const url = URL.canParse(address) ? new URL(address) : null;
  const isLink = SCHEMES.includes(url?.protocol);
  const element = made(isLink ? "a" : "span", content.length ? content : [address]);
  element.title = address;
  if (isLink) Object.assign(element, { href: url.href, target: "_blank", rel: "noopener noreferrer" });
  for (const inner of element.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
  return element;
}

// Drops the punctuation of the sentence around an address, and a parenthesis that the address does not open.
function withoutPunctuation(address) {
  let end = address.length;
  let unclosed = address.split("(").length - address.split(")").length;
  for (; /[.,:;!?'*_~)]/.test(address[end - 1]); end -= 1) {
    if (address[end - 1] !== ")") continue;
    if (unclosed >= 0) break;
    unclosed += 1;
  }
  return address.slice(0, end);
}

// A run of *, _ or ~~. The characters around it decide whether it may open or close an emphasis (CommonMark 6.2).
function emphasisRun(text, start, token) {
  const before = [...text.slice(Math.max(0, start - 2), start)].at(-1) ?? " ";
  const after = String.fromCodePoint(text.codePointAt(start + token.length) ?? 32);
  const isSpace = (one) => /\s/.test(one);
  const isPunctuation = (one) => /[\p{P}\p{S}]/u.test(one);
  const isLeft = !isSpace(after) && (!isPunctuation(after) || isSpace(before) || isPunctuation(before));
  const isRight = !isSpace(before) && (!isPunctuation(before) || isSpace(after) || isPunctuation(after));
  const isInWords = token[0] !== "_"; // snake_case_names are no emphasis
  return {
    char: token[0],
    length: token.length,
    unused: token.length,
    opens: isLeft && (isInWords || !isRight || isPunctuation(before)),
    closes: isRight && (isInWords || !isLeft || isPunctuation(after)),
  };
}

// Replaces pairs of runs by elements. The stack has the open runs, each with the nodes behind it.
function emphasized(items) {
  const stack = [{ run: null, nodes: [] }];
  for (const item of items) {
    if (typeof item === "string" || item instanceof Node) {
      stack.at(-1).nodes.push(item);
      continue;
    }
    while (item.closes && item.unused > 0) {
      const index = stack.findLastIndex(({ run }) => run !== null && isPair(run, item));
      if (index < 0) break;
      wrap(stack, index, item);
    }
    if (item.unused === 0) continue;
    if (item.opens && stack.length <= MAX_OPEN) stack.push({ run: item, nodes: [] });
    else stack.at(-1).nodes.push(unusedText(item));
  }
  return stack.flatMap(withText);
}

// Closes the open run at an index; the runs above it become text.
function wrap(stack, index, close) {
  const { run: open, nodes } = stack[index];
  const content = [...nodes, ...stack.splice(index + 1).flatMap(withText)];
  const used = Math.min(2, open.unused, close.unused);
  const element = made(close.char === "~" ? "s" : used === 2 ? "strong" : "em", content);
  open.unused -= used;
  close.unused -= used;
  stack[index].nodes = [element];
  if (open.unused === 0) {
    stack.pop();
    stack.at(-1).nodes.push(element);
  }
}

function isPair(open, close) {
  if (open.char !== close.char) return false;
  const isAmbiguous = open.char !== "~" && (open.closes || close.opens);
  return !isAmbiguous || (open.length + close.length) % 3 !== 0 || (open.length % 3 === 0 && close.length % 3 === 0);
}

const unusedText = (run) => run.char.repeat(run.unused);
const withText = ({ run, nodes }) => (run ? [unusedText(run), ...nodes] : nodes);
