// Reads files that are attached to a prompt: text files, {name, text}, and images, {name, image: a data URL}.
const MAX_TEXT = 1 << 20;
const MAX_IMAGE = 1 << 20; // larger ones are drawn smaller: a chat's images travel with each of its requests
const MAX_PIXELS = 1 << 22; // the most that a vision tower reads
const IMAGES = ["image/png", "image/jpeg", "image/webp"];

export const read = async (file) =>
  IMAGES.includes(file.type)
    ? { name: file.name, image: await imageOf(file) }
    : { name: file.name, text: await textOf(file) };

async function textOf(file) {
  if (file.type.startsWith("image/")) throw new Error(`${file.name} is no PNG, JPEG or WebP: convert the image first`);
  if (file.size > MAX_TEXT) throw new Error(`${file.name} has more than 1 MiB: attach a part of it`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // no UTF-8
  }
  throw new Error(`${file.name} is no text file (UTF-8) and no image: only these can be attached`);
}

async function imageOf(file) {
  let bitmap = null;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is damaged: the browser cannot read this image`);
  }
  try {
    return file.size > MAX_IMAGE ? drawn(bitmap) : await urlOf(file);
  } finally {
    bitmap.close(); // tens of megabytes for a photo
  }
}

function urlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function drawn(bitmap) {
  const scale = Math.min(1, Math.sqrt(MAX_PIXELS / (bitmap.width * bitmap.height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.floor(bitmap.width * scale));
  canvas.height = Math.max(1, Math.floor(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.92);
}

// A prompt with its text files, as the model reads it.
export function promptOf({ typed, files }) {
  const blocks = files.filter(({ text }) => text !== undefined).map(({ name, text }) => {
    const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [typed, ...blocks].filter(Boolean).join("\n\n");
}
