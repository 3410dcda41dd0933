// Markdown's blocks to elements: CommonMark without HTML and references, GitHub's tables, and formulas. Untrusted text:
// nodes are made by name and text, never from HTML; the time is linear; lists and quotes nest to MAX_DEPTH.
import { copyButton } from "/static/copy.js";
import { made } from "/static/elements.js";
import { highlight } from "/static/highlight.js";
import { inline } from "/static/inline.js";
import { formula } from "/static/typeset.js";

const MAX_DEPTH = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-+*]|\d{1,9}[.)])(?=[ \t]|$)/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const DELIMITERS = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/;
const FORMULA = /^ {0,3}(?:\$\$|\\\[)/;
const MAX_FORMULA_LINES = 200; // to look at for its end
const CONTAINERS = /^(?:[ \t>]|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t]))*/;
const BLOCKS = [rule, quote, list, fence, heading, indented, formulaBlock, table, paragraph]; // the first that fits

// Yields {source, isApart, make, text}: isApart after a blank line, make() for the element, text of a paragraph only.
export function* blocks(lines, depth = 0) {
  for (let at = 0; at < lines.length; ) {
    const start = at;
    while (at < lines.length && isBlank(lines[at])) at += 1;
    if (at === lines.length) return;
    let found = null;
    for (const block of BLOCKS) if ((found = block(lines, at, depth))) break;
    yield { ...found, source: lines.slice(at, found.end).join("\n"), isApart: at > start };
    at = found.end;
  }
}

const isBlank = (line) => line.trim() === "";

// Columns of white space at the start; a tab goes on to the next multiple of four.
function indent(line) {
  let columns = 0;
  for (const char of line) {
    if (char === " ") columns += 1;
    else if (char === "\t") columns += 4 - (columns % 4);
    else break;
  }
  return columns;
}

function dedent(line, columns) {
  let [at, seen] = [0, 0];
  for (; seen < columns && /[ \t]/.test(line[at]); at += 1) seen += line[at] === " " ? 1 : 4 - (seen % 4);
  return " ".repeat(Math.max(0, seen - columns)) + line.slice(at);
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { end: at + 1, make: () => made("hr") } : null;
}

function heading(lines, at) {
  const [, marks, text] = HEADING.exec(lines[at]) ?? [];
  if (!marks) return null;
  const title = text.trim().replace(/(?:^|[ \t])#+$/, "").trim();
  return { end: at + 1, make: () => made(`h${marks.length}`, inline(title)) };
}

// The marks and the language of a line that opens a block of code.
function opening(line) {
  const [, marks, info] = FENCE.exec(line) ?? [];
  return marks && !(marks[0] === "`" && info.includes("`")) ? { marks, language: info.trim().split(" ")[0] } : null;
}

function closes(line, { marks }) {
  const [, own, info] = FENCE.exec(line) ?? [];
  return own !== undefined && own[0] === marks[0] && own.length >= marks.length && isBlank(info);
}

function fence(lines, at) {
  const open = opening(lines[at]);
  if (!open) return null;
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], open)) end += 1;
  const code = lines.slice(at + 1, end).map((line) => dedent(line, indent(lines[at])));
  return { end: Math.min(end + 1, lines.length), make: () => codeBlock(code.join("\n"), open.language) };
}

function indented(lines, at) {
  let end = at;
  for (let next = at; next < lines.length && (isBlank(lines[next]) || indent(lines[next]) >= 4); next += 1) {
    if (!isBlank(lines[next])) end = next + 1;
  }
  if (end === at) return null;
  const code = lines.slice(at, end).map((line) => dedent(line, 4));
  return { end, make: () => codeBlock(code.join("\n"), "") };
}

function codeBlock(code, language) {
  const title = made("div", [made("span", [language]), copyButton(() => code)], "title");
  const text = made("code", [code]);
  highlight(text, code, language);
  return made("div", [title, made("pre", [text])], "code");
}

// A formula between $$ and $$, or between \[ and \], that begins and ends lines.
function formulaBlock(lines, at) {
  if (!FORMULA.test(lines[at])) return null;
  const first = lines[at].trim();
  const [open, close] = first.startsWith("$$") ? ["$$", "$$"] : ["\\[", "\\]"];
  const inner = [first.slice(open.length)];
  for (let end = at + 1; ; end += 1) {
    const line = inner.at(-1).trimEnd();
    const found = line.indexOf(close);
    if (found >= 0 && found < line.length - close.length) return null; // text follows: a paragraph with a formula
    if (found >= 0) {
      const source = [...inner.slice(0, -1), line.slice(0, found)].join("\n").trim();
      return source ? { end, make: () => formula(source, true) } : null;
    }
    if (end >= lines.length || end - at > MAX_FORMULA_LINES) return null;
    inner.push(lines[end]);
  }
}

// The lines of a quote or of a list's item, without its marks.
class Content {
  constructor() {
    this.lines = [];
    this.fence = null; // an open one
  }

  push(line) {
    this.lines.push(line);
    const inner = line.replace(CONTAINERS, "");
    if (!this.fence) this.fence = opening(inner);
    else if (closes(inner, this.fence)) this.fence = null;
  }

  // Takes a line without a mark if it goes on with the paragraph at the end.
  pushLazily(line) {
    const last = this.lines.at(-1) ?? "";
    const inner = last.replace(CONTAINERS, "");
    if (this.fence || isBlank(inner) || begins(inner) || indent(last) > 3) return false;
    if (isBlank(line) || begins(line)) return false;
    this.push(line.trimStart());
    return true;
  }
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at]) || depth === MAX_DEPTH) return null;
  const own = new Content();
  let end = at;
  for (; end < lines.length; end += 1) {
    if (QUOTE.test(lines[end])) own.push(lines[end].replace(QUOTE, ""));
    else if (!own.pushLazily(lines[end])) break;
  }
  return { end, make: () => made("blockquote", Array.from(blocks(own.lines, depth + 1), ({ make }) => make())) };
}

// The mark of a list's item: its kind, its number, where it starts, and the column of the item's text.
function mark(line) {
  const [, margin, sign] = RULE.test(line) ? [] : (ITEM.exec(line) ?? []);
  if (!sign) return null;
  const start = margin.length + sign.length;
  const width = indent(" ".repeat(start) + line.slice(start)) - start;
  const isEmpty = isBlank(line.slice(start));
  const column = start + (isEmpty || width > 4 ? 1 : width);
  const number = Number.parseInt(sign, 10);
  return { kind: sign.at(-1), number, isNumbered: number >= 0, start, isEmpty, column };
}

function list(lines, at, depth) {
  const first = mark(lines[at]);
  if (!first || depth === MAX_DEPTH) return null;
  const items = [];
  let [end, hasGaps] = [at, false];
  for (let next = at; next < lines.length && mark(lines[next])?.kind === first.kind; ) {
    hasGaps ||= next > end;
    const own = item(lines, next);
    items.push(own);
    end = next + own.length;
    for (next = end; next < lines.length && isBlank(lines[next]); ) next += 1;
  }
  return { end, make: () => listElement(first, items, hasGaps, depth) };
}

// The lines of the item that begins at a line, at least one.
function item(lines, at) {
  const { start, column, isEmpty } = mark(lines[at]);
  const own = new Content();
  own.push(dedent(" ".repeat(start) + lines[at].slice(start), column));
  for (let next = at + 1; next < lines.length; next += 1) {
    const line = lines[next];
    if (isBlank(line) && !(isEmpty && next === at + 1)) own.push("");
    else if (!isBlank(line) && indent(line) >= column) own.push(dedent(line, column));
    else if (!own.pushLazily(line)) break;
  }
  while (own.lines.length > 1 && isBlank(own.lines.at(-1))) own.lines.pop();
  return own.lines;
}

// Blank lines between items or their blocks make paragraphs of the items' texts.
function listElement({ number, isNumbered }, items, hasGaps, depth) {
  const parsed = items.map((own) => [...blocks(own, depth + 1)]);
  const isLoose = hasGaps || parsed.some((own) => own.slice(1).some(({ isApart }) => isApart));
  const element = made(isNumbered ? "ol" : "ul");
  if (isNumbered) element.start = number;
  for (const own of parsed) {
    element.append(made("li", own.flatMap(({ text, make }) => (text && !isLoose ? inline(withBox(text)) : [make()]))));
  }
  return element;
}

const withBox = (text) => text.replace(/^\[ \](?= )/, "☐").replace(/^\[x\](?= )/i, "☑");

// Whether a line begins a block that needs no blank line before it.
function begins(line) {
  return Boolean(opening(line) ?? mark(line)) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

// Whether a line ends the paragraph above it: an empty item does not, nor a number that may be the sentence's.
function interrupts(line) {
  const found = mark(line);
  return found ? !found.isEmpty && (!found.isNumbered || found.number === 1) : begins(line);
}

function paragraph(lines, at) {
  const goesOn = (line, next) => !isBlank(line) && !UNDERLINE.test(line) && !interrupts(line) && !table(lines, next) && !formulaBlock(lines, next);
  let end = at + 1;
  while (end < lines.length && goesOn(lines[end], end)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd();
  const [, sign] = UNDERLINE.exec(lines[end] ?? "") ?? [];
  if (sign) return { end: end + 1, make: () => made(sign[0] === "=" ? "h1" : "h2", inline(text)) };
  return { end, text, make: () => made("p", inline(text)) };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const alignment = (cell) => (!cell.endsWith(":") ? "" : cell.startsWith(":") ? "center" : "right");

function table(lines, at) {
  const delimiters = lines[at + 1]?.trim() ?? "";
  if (!lines[at].includes("|") || !DELIMITERS.test(delimiters)) return null;
  const aligned = cells(delimiters).map(alignment);
  if (cells(lines[at]).length !== aligned.length) return null;
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && !begins(lines[end])) end += 1;
  const make = () => {
    const head = made("thead", [row("th", lines[at], aligned)]);
    const body = made("tbody", lines.slice(at + 2, end).map((line) => row("td", line, aligned)));
    return made("div", [made("table", [head, body])], "scroll");
  };
  return { end, make };
}

// Short rows stay short: filling up many of them under a wide head would not be linear.
function row(tag, line, aligned) {
  const own = cells(line).slice(0, aligned.length).map((text) => made(tag, inline(text)));
  for (const [i, cell] of own.entries()) cell.style.textAlign = aligned[i];
  return made("tr", own);
}
