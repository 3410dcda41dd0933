// The open chat: its branch that is shown, and the requests that add to it. A request without answer changes nothing.
import { isAnswering, isRunning, readAnswer, runningTurn, runningView, stopAnswers } from "/static/answers.js";
import { promptOf } from "/static/attached.js";
import { draft, moveDraft, openDraft, setDraft } from "/static/composer.js";
import { contentOf, imagesOf, textOf } from "/static/content.js";
import { AnswerView, ResultView, UserView } from "/static/message.js";
import { showUsage } from "/static/progress.js";
import { follow, scrollToEnd } from "/static/scrolling.js";
import { keepNewChatSettings, newChatSettings, requestOf, settings, showSettings } from "/static/settings.js";
import * as store from "/static/store.js";
import { Tree } from "/static/tree.js";

const $ = (id) => document.getElementById(id);
let chat = null; // the record; null: a new one
let tree = new Tree([]);
let path = []; // the turns shown
let views = new Map(); // id of a turn -> its view
let showList = null; // called when the open chat has changed

export function startChat(onChange) {
  showList = onChange;
  $("stop").addEventListener("click", stop);
  $("cancel").addEventListener("click", () => edit(null));
  store.onChange(takeChange);
}

export const current = () => ({ chat, path });
export const isBusy = () => chat !== null && isAnswering(chat.id);

// Opens a kept chat, or a new one. Answers that are being written in another one go on.
export async function openChat(id) {
  chat = (id === null ? null : await store.readChat(id)) ?? null;
  views = new Map();
  const turns = chat ? await store.turnsOf(chat.id) : [];
  tree = new Tree(turns.map((turn) => runningTurn(turn.id) ?? turn));
  $("problem").textContent = "";
  showSettingsOf(chat);
  openDraft(chat?.id ?? null);
  showAddress();
  show();
  const asked = chat && tree.path(chat.leaf)[path.length];
  if (asked?.message.role === "user" && !draft().typed) setDraft(promptIn(asked));
  scrollToEnd();
  resume([...tree.turns.values()]);
  await showList();
}

function showSettingsOf(one) {
  showSettings(one?.settings ?? newChatSettings(), one ? "of this chat" : "of new chats");
}

export async function changeSettings(values) {
  if (!chat) {
    keepNewChatSettings(values);
    return;
  }
  chat.settings = values;
  await kept(store.updateChat(chat.id, { settings: values }));
}

// Sends the prompt: at the end, or as a branch beside the turn that is edited.
export function send() {
  const written = draft();
  if (isBusy() || (!written.typed.trim() && written.files.length === 0)) return;
  const replaced = tree.turns.get(written.editing);
  const parent = replaced ? replaced.parent : (path.at(-1)?.id ?? null);
  const images = written.files.flatMap(({ image }) => image ?? []);
  const files = written.files.filter(({ image }) => !image);
  const message = { role: "user", content: contentOf(promptOf(written), images) };
  setDraft({});
  exchange(parent, [{ message, typed: written.typed, files }], replaced?.id ?? null);
}

const handlersOf = (id) => ({
  edit: () => edit(tree.turns.get(id)),
  step: (by) => showBranch(id, by),
  regenerate: () => exchange(tree.turns.get(id).parent, []),
  goOn: () => continueAnswer(tree.turns.get(id)),
  sendResults: (results) =>
    exchange(
      id,
      results.map(({ id: call, content }) => ({ message: { role: "tool", tool_call_id: call, content } })),
    ),
  progress: (usage, speed) => path.at(-1)?.id === id && showUsage(usage, speed),
});

// Adds turns after a turn and requests an answer to them. edited: the turn that they replace.
function exchange(parent, added, edited = null) {
  if (isBusy()) return;
  const before = path.at(-1)?.id ?? null;
  const at = Date.now();
  if (!chat) createChat(added, at);
  const asked = [];
  for (const [i, one] of added.entries()) {
    asked.push({ ...one, id: store.newId(), chat: chat.id, parent: asked.at(-1)?.id ?? parent, at: at + i });
  }
  const answer = {
    id: store.newId(),
    chat: chat.id,
    parent: asked.at(-1)?.id ?? parent,
    at: at + added.length,
    message: { role: "assistant", content: "" },
    stream: store.newId(),
    base: null,
    before,
    askedAt: at,
  };
  for (const turn of [...asked, answer]) tree.add(turn);
  const saved = Promise.all([...asked, answer].map((turn) => kept(store.saveTurn(turn))));
  write(answer, () => requestOf(messagesUpTo(answer.parent)), { edited, saved });
}

function createChat(added, at) {
  const record = { id: store.newId(), created: at, updated: at, leaf: null, isNamed: false };
  chat = { ...record, settings: settings(), title: store.titleOf(added) };
  moveDraft(chat.id);
  showSettingsOf(chat);
  showAddress();
  kept(store.addChat(chat)).then(showList);
}

// Continues the text of an answer that was cut.
function continueAnswer(turn) {
  if (isBusy()) return;
  const { message, failure, note, reason, usage } = turn;
  const base = { ...message, content: message.content.trimEnd() };
  const former = { message, failure, note, reason, usage };
  Object.assign(turn, { base, former, before: turn.id, stream: store.newId(), askedAt: Date.now() });
  const saved = kept(store.saveTurn(turn));
  write(turn, () => requestOf([...messagesUpTo(turn.parent), base]), { saved });
}

const messagesUpTo = (id) => (id === null ? [] : tree.path(id).map(({ message }) => message));

// Goes on with answers that an earlier page or another tab has requested.
function resume(turns) {
  for (const turn of turns) if (turn.stream && !isRunning(turn)) write(turn, null);
}

export async function resumeAll() {
  resume(await store.unfinishedTurns().catch(() => []));
}

// Reads the answer of a turn, by a request or (null) from the stream that the server keeps. saved: when the browser has
// the turn, before which nothing is requested: a reload would find no turn for the answer.
async function write(turn, request, { edited = null, saved = null } = {}) {
  const isOpen = chat?.id === turn.chat;
  const view = isOpen ? viewOf(turn) : newView(turn);
  let failure = null;
  let reading = null;
  if (request) {
    view.restart(turn.base);
    keepAsked(turn.stream);
  }
  try {
    reading = readAnswer(turn, view, request?.() ?? null, saved);
  } catch (error) {
    failure = error; // the tools are no JSON
  }
  if (isOpen && request) {
    $("problem").textContent = "";
    edit(null);
    chat.leaf = turn.id;
    kept(store.updateChat(turn.chat, { leaf: turn.id, updated: Date.now() }));
  }
  if (isOpen) show();
  if (request) scrollToEnd();
  failure ??= await reading;
  const isLost = failure !== null && view.isEmpty;
  if (isLost && chat?.id === turn.chat) await forget(turn, failure, edited);
  else await finish(turn, view);
}

const UNFINISHED = ["stream", "base", "before", "former", "askedAt"]; // fields of a turn whose answer is being written

async function finish(turn, view) {
  Object.assign(turn, view.kept());
  await settle(turn);
  await kept(store.updateChat(turn.chat, { updated: Date.now() }));
  await showList();
}

async function settle(turn) {
  for (const name of UNFINISHED) delete turn[name];
  if (chat?.id === turn.chat) show();
  await kept(store.saveTurn(turn));
}

// Takes back a request without answer: the turns that it added go, and its prompt returns to the box.
async function forget(turn, failure, edited) {
  if (failure.name !== "AbortError") $("problem").textContent = failure.message;
  if (turn.base) {
    Object.assign(turn, turn.former);
    views.delete(turn.id);
    await settle(turn);
    return;
  }
  const isOwn = wasAsked(turn.stream);
  const gone = tree.unanswered(turn);
  for (const one of gone) tree.remove(one);
  const { id } = chat;
  chat.leaf = turn.before;
  const isOver = tree.turns.size === 0;
  if (isOver) {
    chat = null;
    moveDraft(null);
    showSettingsOf(null);
    showAddress();
  }
  const question = gone.find(({ message }) => message.role === "user");
  if (question && isOwn) returnPrompt(question, edited);
  show();
  await kept(isOver ? store.deleteChat(id) : store.deleteTurns(id, gone));
  if (!isOver) await kept(store.updateChat(id, { leaf: turn.before }));
  await showList();
}

// What was typed and attached for a turn of the user. Images are kept in the message alone.
function promptIn({ typed, files = [], message }) {
  const images = imagesOf(message).map((image, i) => ({ name: `image ${i + 1}`, image }));
  return { typed: typed ?? textOf(message), files: [...images, ...files] };
}

// Puts a prompt before whatever was typed meanwhile.
function returnPrompt(question, edited) {
  const { typed, files } = promptIn(question);
  const later = draft();
  const editing = tree.turns.has(edited) ? edited : null;
  setDraft({ typed: [typed, later.typed].filter(Boolean).join("\n\n"), files: [...files, ...later.files], editing });
}

// Which requests are this tab's own, also after a reload: another tab that shows the chat leaves the prompt to it.
const keepAsked = (stream) => sessionStorage.setItem("asked", stream);
const wasAsked = (stream) => sessionStorage.getItem("asked") === stream;

export function stop() {
  if (chat) stopAnswers(chat.id);
}

// Loads a turn of the user into the box, for a branch beside it; null ends that.
export function edit(turn) {
  if (turn && isBusy()) return;
  if (turn) {
    setDraft({ ...promptIn(turn), editing: turn.id });
    $("prompt").focus();
  } else if (draft().editing) setDraft({});
  showState();
}

export const editLast = () => edit(path.findLast(({ message }) => message.role === "user") ?? null);

function showBranch(id, by) {
  if (isBusy()) return;
  const turn = tree.turns.get(id);
  const branches = tree.after(turn.parent);
  chat.leaf = tree.newestLeaf(branches[branches.indexOf(turn) + by]).id;
  edit(null);
  show();
  kept(store.updateChat(chat.id, { leaf: chat.leaf }));
}

// Another tab has changed a chat.
async function takeChange(id) {
  if (chat?.id === id) await merge(id);
  await showList();
}

// Takes what another tab has added to the open chat, and follows it where this tab shows the same branch.
async function merge(id) {
  const [record, turns] = [await store.readChat(id), await store.turnsOf(id)];
  if (chat?.id !== id) return;
  if (!record) {
    if (!isBusy()) await openChat(null);
    return;
  }
  for (const turn of turns.sort((a, b) => a.at - b.at)) {
    const known = tree.turns.get(turn.id);
    if (!known) tree.add(turn);
    else if (!isRunning(known) && JSON.stringify(known) !== JSON.stringify(turn)) {
      for (const name of UNFINISHED) delete known[name];
      Object.assign(known, turn);
      views.delete(turn.id);
    }
  }
  if (!isBusy() && tree.isAncestor(chat.leaf, record.leaf)) chat.leaf = record.leaf;
  chat = { ...record, leaf: chat.leaf };
  if (!$("controls").contains(document.activeElement)) showSettingsOf(chat);
  show();
  resume(turns.map(({ id: turn }) => tree.turns.get(turn)));
}

function viewOf(turn) {
  const running = runningView(turn);
  if (running) views.set(turn.id, running);
  if (!views.has(turn.id)) views.set(turn.id, newView(turn));
  return views.get(turn.id);
}

function newView(turn) {
  const handlers = handlersOf(turn.id);
  if (turn.message.role === "user") return new UserView(turn, handlers);
  if (turn.message.role === "tool") return new ResultView(turn, handlers);
  return AnswerView.restored(turn, handlers);
}

// Turns up to the last answer: those after it were never requested.
const answered = (turns) => turns.slice(0, turns.findLastIndex(({ message }) => message.role === "assistant") + 1);

// Shows the open chat's branch up to its leaf. Elements that stay are not moved: selections stay.
function show() {
  path = chat ? answered(tree.path(chat.leaf)) : [];
  const box = $("messages");
  for (const [i, turn] of path.entries()) {
    const view = viewOf(turn);
    const branches = tree.after(turn.parent);
    view.branches.show(branches.indexOf(turn) + 1, branches.length);
    view.setLast?.(i === path.length - 1);
    if (box.children[i] !== view.element) box.insertBefore(view.element, box.children[i] ?? null);
  }
  while (box.childElementCount > path.length) box.lastChild.remove();
  follow(path.length ? viewOf(path.at(-1)).element : null);
  showUsage(path.findLast(({ usage }) => usage)?.usage ?? null);
  showState();
}

function showState() {
  const busy = isBusy();
  document.body.classList.toggle("busy", busy); // hides what would change the turns
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  const { editing } = draft();
  const from = path.findIndex(({ id }) => id === editing);
  for (const [i, element] of [...$("messages").children].entries()) {
    element.classList.toggle("replaced", from >= 0 && i >= from);
  }
  for (const name of ["editing", "cancel"]) $(name).hidden = from < 0;
  $("hint").hidden = from >= 0;
}

// A reload opens the chat that the address names.
const showAddress = () => history.replaceState(null, "", chat ? `#${chat.id}` : "/");

async function kept(saved) {
  await saved.catch((error) => ($("kept").textContent = `This chat is not kept: ${error.message}`));
}
