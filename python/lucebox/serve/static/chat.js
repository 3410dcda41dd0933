// The chat: turns, each a message of the API and the element that shows it. A request without answer changes nothing.
import { AnswerView, resultView, userView } from "/static/message.js";
import { events } from "/static/server.js";
import { request } from "/static/settings.js";
import { deleteChat, saveChat } from "/static/store.js";

const SAVE_MS = 2000; // between saves of an answer that streams
const $ = (id) => document.getElementById(id);
let turns = []; // {message, element, ...}, see AnswerView.turn
let id = null; // the chat's, from its first request on
let editing = null; // the user's turn that the next prompt replaces
let running = null; // the request: {abort, ended}
let showList = null; // called after a save

export function startChat(onSave) {
  showList = onSave;
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Escape") edit(null);
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
  $("stop").addEventListener("click", () => running?.abort.abort());
  $("cancel").addEventListener("click", () => edit(null));
}

export const current = () => ({ id, turns });

// Opens a kept chat, or an empty one, up to the last answer. A prompt behind it goes back into the box.
export async function openChat(chat) {
  running?.abort.abort();
  await running?.ended;
  id = chat?.id ?? null;
  edit(null);
  $("problem").textContent = "";
  const kept = chat?.turns ?? [];
  const count = kept.findLastIndex(({ message }) => message.role === "assistant") + 1;
  if (kept[count]?.message.role === "user") returnPrompt(kept[count].message.content);
  show(kept.slice(0, count).map((turn, i) => ({ ...turn, element: shown(turn, i === count - 1) })));
  showAddress();
  $("messages").scrollTop = $("messages").scrollHeight;
  await showList();
}

function shown({ message, ...rest }, isLast) {
  if (message.role === "user") return userTurn(message.content).element;
  if (message.role === "tool") return resultView(message.content);
  return AnswerView.restored({ message, ...rest }, isLast, handlers).element;
}

function userTurn(text) {
  const turn = { message: { role: "user", content: text } };
  turn.element = userView(text, ({ target }) => edit(turns.find(({ element }) => element.contains(target))));
  return turn;
}

const handlers = {
  regenerate: ({ target }) => exchange(turns.findIndex(({ element }) => element.contains(target)), []),
  sendResults: (results) =>
    exchange(
      turns.length,
      results.map(({ id: call, content }) => {
        return { message: { role: "tool", tool_call_id: call, content }, element: resultView(content) };
      }),
    ),
};

async function send() {
  const text = $("prompt").value;
  if (running || !text.trim()) return;
  const replaced = editing;
  edit(null);
  $("prompt").value = "";
  const isAnswered = await exchange(replaced ? turns.indexOf(replaced) : turns.length, [userTurn(text)]);
  if (isAnswered) return;
  if (turns.includes(replaced)) edit(replaced);
  returnPrompt(text);
}

// Puts a prompt before whatever was typed meanwhile.
function returnPrompt(text) {
  const typed = editing ? "" : $("prompt").value;
  $("prompt").value = [text, typed].filter(Boolean).join("\n\n");
}

// Loads a turn of the user into the box, to replace it and all turns behind it; null ends that.
function edit(turn) {
  if (running) return;
  if (turn || editing) $("prompt").value = turn?.message.content ?? "";
  editing = turn;
  const from = turn ? turns.indexOf(turn) : turns.length;
  for (const [i, { element }] of turns.entries()) element.classList.toggle("replaced", i >= from);
  if (turn) $("prompt").focus();
  showState();
}

// Requests an answer to the turns before an index and some new ones; whether there was any.
async function exchange(from, added) {
  if (running) return false;
  const before = turns;
  const view = new AnswerView(handlers);
  edit(null);
  show([...turns.slice(0, from), ...added]);
  $("messages").append(view.element);
  $("messages").scrollTop = $("messages").scrollHeight;
  $("problem").textContent = "";
  let end = null;
  running = { abort: new AbortController(), ended: new Promise((resolve) => (end = resolve)) };
  showState();
  id ??= Date.now();
  await save(turns);
  const failure = await stream(view, running.abort.signal);
  const isLost = failure !== null && view.isEmpty;
  show(isLost ? before : [...turns, view.turn()]);
  if (isLost && failure.name !== "AbortError") $("problem").textContent = failure.message;
  await save(turns);
  running = null;
  showState();
  end();
  return !isLost;
}

// Shows the events of an answer as they come; the error that ended them, or null.
async function stream(view, signal) {
  let savedAt = Date.now();
  try {
    for await (const event of events("/v1/chat/completions", request(turns.map(({ message }) => message)), signal)) {
      view.take(event);
      if (view.isEmpty || Date.now() - savedAt < SAVE_MS) continue;
      savedAt = Date.now();
      await save([...turns, view.turn()]);
    }
    view.end();
    return null;
  } catch (error) {
    view.fail(error);
    return error;
  }
}

async function save(all) {
  const kept = all.map(({ element, ...turn }) => turn);
  const saved = kept.length ? saveChat({ id, updated: Date.now(), turns: kept }) : deleteChat(id);
  if (!kept.length) id = null;
  showAddress();
  await saved.catch((error) => ($("kept").textContent = `This chat is not kept: ${error.message}`));
  await showList();
}

// A reload opens the chat that the address names.
const showAddress = () => history.replaceState(null, "", id === null ? "/" : `#${id}`);

function show(next) {
  turns = next;
  $("messages").replaceChildren(...turns.map(({ element }) => element));
  showState();
}

function showState() {
  const isBusy = running !== null;
  document.body.classList.toggle("busy", isBusy); // hides what would change the turns
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  for (const name of ["editing", "cancel"]) $(name).hidden = editing === null;
  $("hint").hidden = editing !== null;
}
