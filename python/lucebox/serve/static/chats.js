// The list of kept chats: search, rename, delete, import and export.
import { isAnswering, stopAnswers } from "/static/answers.js";
import { current, openChat } from "/static/chat.js";
import { textOf } from "/static/content.js";
import { button, made } from "/static/elements.js";
import { backupOf, download, importedChats, jsonOf, markdownOf, today } from "/static/files.js";
import { showPane } from "/static/layout.js";
import { addChat, allChats, allTurns, deleteChat, readChat, turnsOf, updateChat } from "/static/store.js";

const SEARCH_MS = 150; // from a key to the search
const AROUND = 30; // characters before a match that the list shows
const $ = (id) => document.getElementById(id);

export function startChats() {
  $("new").addEventListener("click", newChat);
  $("export-markdown").addEventListener("click", () => save("md", markdownOf));
  $("export-json").addEventListener("click", () => save("json", jsonOf));
  $("export-all").addEventListener("click", async () => {
    download(`lucebox-chats-${today()}.json`, backupOf(await allChats(), await allTurns()));
  });
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", importFiles);
  let timer = null;
  $("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(showList, SEARCH_MS);
  });
}

export const newChat = () => open(null);

export function search() {
  if (document.body.dataset.pane !== "chats") showPane("chats");
  $("search").focus();
  $("search").select();
}

function save(ending, textOf) {
  const { chat, path } = current();
  download(`chat-${new Date(chat.created).toISOString().slice(0, 10)}.${ending}`, textOf(path));
}

async function open(id) {
  showPane("chat");
  await openChat(id);
  $("prompt").focus();
}

// Several calls may be on their way: the list shows what the last one found.
let calls = 0;
export async function showList() {
  const call = (calls += 1);
  const { chat: opened, path } = current();
  const words = $("search").value.trim().toLowerCase();
  let rows = [];
  try {
    const chats = await allChats();
    const found = words ? matches(chats, await allTurns(), words) : new Map(chats.map((chat) => [chat, null]));
    rows = Array.from(found, ([chat, part]) => row(chat, part, chat.id === opened?.id));
  } catch (error) {
    $("kept").textContent = `This browser keeps no chats: ${error.message}`;
  }
  if (call !== calls) return;
  $("list").replaceChildren(...rows);
  $("list").dataset.empty = words ? "No chat has these words" : "No chats yet";
  for (const name of ["export-markdown", "export-json"]) $(name).disabled = path.length === 0;
}

// The chats with a text in their title or their turns, each with the part that matches, or null.
function matches(chats, turns, words) {
  const parts = new Map();
  for (const { chat, message } of turns) {
    const text = textOf(message);
    const at = text.toLowerCase().indexOf(words);
    if (at < 0 || parts.has(chat)) continue;
    const start = Math.max(0, at - AROUND);
    parts.set(chat, `${start > 0 ? "…" : ""}${text.slice(start, at + words.length + AROUND)}`);
  }
  const found = chats.filter(({ id, title }) => parts.has(id) || title.toLowerCase().includes(words));
  return new Map(found.map((chat) => [chat, parts.get(chat.id) ?? null]));
}

function row(chat, part, isCurrent) {
  const { id, title, updated } = chat;
  const when = new Date(updated).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  const opener = button(title, () => open(id));
  opener.append(made("small", [part ?? (isAnswering(id) ? "writing …" : when)]));
  if (isCurrent) opener.setAttribute("aria-current", "true");
  const rename = button("✎", () => renameChat(chat), "", `Rename ${title}`);
  const remove = button("×", () => removeChat(chat), "", `Delete ${title}`);
  return made("li", [opener, rename, remove]);
}

async function renameChat({ id, title }) {
  const next = prompt("Name of the chat", title)?.trim();
  if (!next) return;
  await updateChat(id, { title: next, isNamed: true });
  await showList();
}

async function removeChat({ id, title }) {
  if (!confirm(`Delete the chat "${title}"?`)) return;
  stopAnswers(id);
  if (current().chat?.id === id) await openChat(null);
  await deleteChat(id);
  await showList();
}

async function importFiles() {
  const problems = [];
  for (const file of $("import-file").files) {
    try {
      for (const found of importedChats(await file.text(), file.name)) await addMissing(found);
    } catch (error) {
      problems.push(error.message);
    }
  }
  $("import-file").value = "";
  $("kept").textContent = problems.join("; ") || "Imported.";
  await showList();
  const { chat } = current();
  if (chat) await openChat(chat.id);
}

// A chat that is here already keeps its record, and gets the turns that it lacks.
async function addMissing({ chat, turns }) {
  const known = new Set((await turnsOf(chat.id)).map(({ id }) => id));
  await addChat((await readChat(chat.id)) ?? chat, turns.filter(({ id }) => !known.has(id)));
}
