// A chat as a file: Markdown to read, or the API's messages as JSON.

const MAX_TITLE = 60;
const NAMES = { user: "User", assistant: "Assistant", tool: "Tool result" };

export function titleOf({ turns }) {
  const words = turns[0].message.content.trim().replaceAll(/\s+/g, " ");
  return words.length > MAX_TITLE ? `${words.slice(0, MAX_TITLE)}…` : words;
}

export function jsonOf({ turns }) {
  return `${JSON.stringify({ messages: turns.map(({ message }) => message) }, null, 2)}\n`;
}

export function markdownOf({ turns }) {
  return `${turns.flatMap(({ message }) => [`## ${NAMES[message.role]}`, ...partsOf(message)]).join("\n\n")}\n`;
}

function partsOf({ content, reasoning_content: reasoning, tool_calls: calls = [] }) {
  const thinking = reasoning ? [reasoning.trim().replaceAll(/^/gm, "> ")] : [];
  const called = calls.map(({ function: { name, arguments: text } }) => `\`${name}\`\n\n\`\`\`json\n${text}\n\`\`\``);
  return [...thinking, ...(content ? [content.trim()] : []), ...called];
}

export function download(chat, ending, textOf) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([textOf(chat)]));
  link.download = `chat-${new Date(chat.id).toISOString().slice(0, 10)}.${ending}`;
  link.click();
  URL.revokeObjectURL(link.href);
}
