// Chats as files: one as Markdown to read, or as the API's messages; all of them as a backup, which can be imported.
import { imagesOf, isContent, textOf } from "/static/content.js";
import { chatOf } from "/static/store.js";

const NAMES = { system: "System", user: "User", assistant: "Assistant", tool: "Tool result" };
const ROLES = Object.keys(NAMES);
const FORMAT = "lucebox-chats";

export function jsonOf(turns) {
  return `${JSON.stringify({ messages: turns.map(({ message }) => message) }, null, 2)}\n`;
}

export function markdownOf(turns) {
  return `${turns.flatMap(({ message }) => [`## ${NAMES[message.role]}`, ...partsOf(message)]).join("\n\n")}\n`;
}

function partsOf(message) {
  const { reasoning_content: reasoning, tool_calls: calls = [] } = message;
  const text = textOf(message).trim();
  const images = imagesOf(message).map((url, i) => `![Image ${i + 1}](${url})`);
  const thinking = reasoning ? [reasoning.trim().replaceAll(/^/gm, "> ")] : [];
  const called = calls.map(({ function: { name, arguments: text } }) => `\`${name}\`\n\n\`\`\`json\n${text}\n\`\`\``);
  return [...thinking, ...images, ...(text ? [text] : []), ...called];
}

export function backupOf(chats, turns) {
  return `${JSON.stringify({ format: FORMAT, chats, turns })}\n`;
}

export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text]));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

export const today = () => new Date().toISOString().slice(0, 10);

// The chats of a file, [{chat, turns}]: a backup, or messages as of an export or of `lucebox chat`.
export function importedChats(text, name) {
  let data = null;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is not JSON: ${error.message}`);
  }
  if (data?.format === FORMAT && Array.isArray(data.chats) && Array.isArray(data.turns)) return ofBackup(data, name);
  if (Array.isArray(data?.messages) && data.messages.every(isMessage)) return [ofMessages(data.messages, name)];
  throw new Error(`${name} has no chats: import a file that this page or "lucebox chat" has written`);
}

function ofBackup({ chats, turns }, name) {
  const ids = new Set(chats.map(({ id }) => id));
  const areChats = chats.every(({ id, title, updated }) => isText(id) && isText(title) && Number.isFinite(updated));
  const areTurns = turns.every(
    ({ id, chat, parent, at, message }) =>
      isText(id) && ids.has(chat) && (parent === null || isText(parent)) && Number.isFinite(at) && isMessage(message),
  );
  if (!areChats || !areTurns) throw new Error(`${name} is damaged: a chat or a turn has no id, time or message`);
  const all = new Map(chats.map((chat) => [chat.id, { chat: { settings: {}, ...chat }, turns: [] }]));
  for (const { stream, base, before, ...turn } of turns) all.get(turn.chat).turns.push(turn); // no server has its stream
  return [...all.values()];
}

function ofMessages(messages, name) {
  const [first, ...others] = messages;
  const hasSystem = first?.role === "system";
  const row = (hasSystem ? others : messages).map((message) => ({ message, reason: "stop" }));
  if (row.length === 0) throw new Error(`${name} has no messages`);
  return chatOf(row, { settings: hasSystem ? { system: first.content } : {} });
}

const isText = (value) => typeof value === "string";
const isMessage = (message) => ROLES.includes(message?.role) && isContent(message.content, message.role);
