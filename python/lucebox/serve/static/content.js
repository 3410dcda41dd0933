// The content of a message: a text, or parts of OpenAI's form, {type: "text"} and {type: "image_url"} with a data URL.
const IMAGE = /^data:image\/(png|jpeg|webp);base64,/;

// A message's text with its images, data URLs, before it.
export function contentOf(text, images) {
  if (images.length === 0) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

export function textOf({ content }) {
  if (!Array.isArray(content)) return content ?? "";
  return content.map(({ text }) => text ?? "").filter(Boolean).join("\n\n");
}

export function imagesOf({ content }) {
  return Array.isArray(content) ? content.flatMap(({ image_url: image }) => image?.url ?? []) : [];
}

const isPart = (part) =>
  part?.type === "text" ? typeof part.text === "string" : part?.type === "image_url" && IMAGE.test(part.image_url?.url);

// Whether a value is a content of this page's messages; images only in the user's.
export function isContent(value, role) {
  if (value === undefined || value === null || typeof value === "string") return true;
  return role === "user" && Array.isArray(value) && value.every(isPart);
}
