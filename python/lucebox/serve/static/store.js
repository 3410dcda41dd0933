// Chats in the browser's own database, which no server sees: {id, updated, turns: [{message, ...}]}.

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("lucebox", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function run(mode, action) {
  const database = await opened;
  return new Promise((resolve, reject) => {
    const request = action(database.transaction("chats", mode).objectStore("chats"));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// All chats, the last used first.
export async function allChats() {
  const chats = await run("readonly", (store) => store.getAll());
  return chats.sort((a, b) => b.updated - a.updated);
}

export const saveChat = (chat) => run("readwrite", (store) => store.put(chat));
export const deleteChat = (id) => run("readwrite", (store) => store.delete(id));
