// The list of kept chats, and their export.
import { current, openChat, startChat } from "/static/chat.js";
import { button, made } from "/static/elements.js";
import { download, jsonOf, markdownOf, titleOf } from "/static/export.js";
import { allChats, deleteChat } from "/static/store.js";

const $ = (id) => document.getElementById(id);

// Opens the chat that the address names, as before a reload, or an empty one.
export async function startChats() {
  startChat(showList);
  $("new").addEventListener("click", () => open(null));
  $("export-markdown").addEventListener("click", () => download(current(), "md", markdownOf));
  $("export-json").addEventListener("click", () => download(current(), "json", jsonOf));
  const chats = await kept();
  await openChat(chats.find(({ id }) => `#${id}` === location.hash) ?? null);
}

async function kept() {
  try {
    return await allChats();
  } catch (error) {
    $("kept").textContent = `This browser keeps no chats: ${error.message}`;
    return [];
  }
}

async function open(chat) {
  document.body.dataset.pane = "chat";
  await openChat(chat);
  $("prompt").focus();
}

async function showList() {
  const { id, turns } = current();
  $("list").replaceChildren(...(await kept()).map((chat) => row(chat, chat.id === id)));
  for (const name of ["export-markdown", "export-json"]) $(name).disabled = turns.length === 0;
}

function row(chat, isCurrent) {
  const when = new Date(chat.updated).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  const title = button(titleOf(chat), () => open(chat));
  title.append(made("small", [when]));
  if (isCurrent) title.setAttribute("aria-current", "true");
  const remove = button("×", async () => {
    if (!confirm(`Delete the chat "${titleOf(chat)}"?`)) return;
    if (current().id === chat.id) await openChat(null);
    await deleteChat(chat.id);
    await showList();
  });
  remove.setAttribute("aria-label", `Delete ${titleOf(chat)}`);
  return made("li", [title, remove]);
}
