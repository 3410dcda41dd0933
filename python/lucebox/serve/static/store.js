// Chats in the browser's own database, which no server sees. A chat is {id, title, isNamed, created, updated, leaf,
// settings}; its turns are records of their own (tree.js), so that tabs do not overwrite each other's. Other tabs are told.
import { textOf } from "/static/content.js";

const tabs = new BroadcastChannel("lucebox");

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("lucebox", 2);
  request.onupgradeneeded = ({ oldVersion }) => upgrade(request.result, request.transaction, oldVersion);
  request.onsuccess = () => {
    request.result.onversionchange = () => request.result.close();
    resolve(request.result);
  };
  request.onerror = () => reject(request.error);
  request.onblocked = () => reject(new Error("another tab has an older version of this page: close it, then reload"));
});

function upgrade(database, transaction, oldVersion) {
  const turns = database.createObjectStore("turns", { keyPath: "id" });
  turns.createIndex("chat", "chat");
  turns.createIndex("stream", "stream"); // of unfinished answers
  if (oldVersion < 1) {
    database.createObjectStore("chats", { keyPath: "id" });
    return;
  }
  const chats = transaction.objectStore("chats"); // version 1: {id, updated, turns: [{message, ...}]}
  chats.getAll().onsuccess = ({ target }) => {
    for (const old of target.result) {
      const chat = chatOf(old.turns, { id: String(old.id), created: old.id, updated: old.updated });
      chats.delete(old.id);
      chats.put(chat.chat);
      for (const turn of chat.turns) turns.put(turn);
    }
  };
}

// A chat of turns in a row: {chat, turns}.
export function chatOf(row, { id = newId(), created = Date.now(), updated = created, settings = {}, title = null } = {}) {
  const turns = [];
  for (const one of row) turns.push({ ...one, id: newId(), chat: id, parent: turns.at(-1)?.id ?? null, at: created });
  const leaf = turns.at(-1)?.id ?? null;
  const chat = { id, created, updated, leaf, settings, title: title ?? titleOf(turns), isNamed: title !== null };
  return { chat, turns };
}

const MAX_TITLE = 60;

export function titleOf(turns) {
  const first = turns.find(({ message }) => message.role === "user") ?? turns[0];
  const words = (first?.typed || (first ? textOf(first.message) : "")).trim().replaceAll(/\s+/g, " ");
  return words.length > MAX_TITLE ? `${words.slice(0, MAX_TITLE)}…` : words || "(no text)";
}

// 128 random bits; crypto.randomUUID() is for loopback and HTTPS pages only.
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Runs requests in one transaction; the result of the request that `action` returns.
async function run(mode, action) {
  const database = await opened;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(["chats", "turns"], mode);
    const request = action(transaction.objectStore("chats"), transaction.objectStore("turns"));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser refused to store it"));
    transaction.onerror = () => reject(transaction.error);
  });
}

async function change(id, action) {
  await run("readwrite", action);
  tabs.postMessage(id);
}

// Calls back with a chat's id when another tab has changed it.
export function onChange(callback) {
  tabs.addEventListener("message", ({ data }) => callback(data));
}

// All chats, the last used first.
export async function allChats() {
  const chats = await run("readonly", (chats) => chats.getAll());
  return chats.sort((a, b) => b.updated - a.updated);
}

export const allTurns = () => run("readonly", (_, turns) => turns.getAll());
export const unfinishedTurns = () => run("readonly", (_, turns) => turns.index("stream").getAll());
export const turnsOf = (id) => run("readonly", (_, turns) => turns.index("chat").getAll(id));
export const readChat = (id) => run("readonly", (chats) => chats.get(id));

export function addChat(chat, added = []) {
  return change(chat.id, (chats, turns) => {
    chats.put(chat);
    for (const turn of added) turns.put(turn);
  });
}

// Changes fields of a chat, unless it has been deleted.
export function updateChat(id, fields) {
  return change(id, (chats) => {
    const request = chats.get(id);
    request.onsuccess = () => request.result && chats.put({ ...request.result, ...fields });
  });
}

// Saves a turn, unless its chat has been deleted.
export function saveTurn({ element, ...turn }) {
  return change(turn.chat, (chats, turns) => {
    const request = chats.get(turn.chat);
    request.onsuccess = () => request.result && turns.put(turn);
  });
}

export function deleteTurns(id, gone) {
  return change(id, (_, turns) => {
    for (const turn of gone) turns.delete(turn.id);
  });
}

export function deleteChat(id) {
  return change(id, (chats, turns) => {
    chats.delete(id);
    turns.index("chat").getAllKeys(id).onsuccess = ({ target }) => {
      for (const key of target.result) turns.delete(key);
    };
  });
}
