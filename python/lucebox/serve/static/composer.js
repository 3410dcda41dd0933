// The box below the messages: a prompt and attached files, kept as a draft of each chat over reloads of the tab.
import { read } from "/static/attached.js";
import { button, made, picture } from "/static/elements.js";

const $ = (id) => document.getElementById(id);
let files = []; // attached.js
let place = ""; // the key of the draft
let editing = null; // the id of the turn that is edited

export function startComposer(onSend) {
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    onSend();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
  $("prompt").addEventListener("input", keepDraft);
  $("attach").addEventListener("click", () => $("picker").click());
  $("picker").addEventListener("change", async () => {
    await attach($("picker").files);
    $("picker").value = "";
  });
  for (const type of ["dragover", "drop"]) {
    $("chat").addEventListener(type, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      if (type === "drop") attach(event.dataTransfer.files);
    });
  }
  $("prompt").addEventListener("paste", (event) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    attach(event.clipboardData.files);
  });
}

export const draft = () => ({ typed: $("prompt").value, files, editing });

export function setDraft({ typed = "", files: attached = [], editing: edited = null }) {
  $("prompt").value = typed;
  editing = edited;
  showFiles(attached);
  keepDraft();
}

// Shows the draft of a chat, which later changes belong to.
export function openDraft(chat) {
  place = placeOf(chat);
  setDraft(keptDraft(chat));
}

// What is typed from now on belongs to another chat.
export const moveDraft = (chat) => (place = placeOf(chat));

export function keptDraft(chat) {
  try {
    return JSON.parse(sessionStorage.getItem(placeOf(chat))) ?? {};
  } catch {
    return {}; // the browser keeps nothing for this page
  }
}

const placeOf = (chat) => `draft ${chat ?? ""}`;

function keepDraft() {
  const { typed } = draft();
  try {
    if (typed || files.length || editing) sessionStorage.setItem(place, JSON.stringify(draft()));
    else sessionStorage.removeItem(place);
  } catch {
    // it is too large to keep
  }
}

async function attach(chosen) {
  const problems = [];
  const added = [];
  for (const file of chosen) {
    try {
      added.push(await read(file));
    } catch (error) {
      problems.push(error.message);
    }
  }
  $("problem").textContent = problems.join("; ");
  showFiles([...files, ...added]);
  keepDraft();
  $("prompt").focus();
}

function showFiles(next) {
  files = next;
  $("files").replaceChildren(
    ...files.map((file) => {
      const remove = button("×", () => drop(file), "", `Remove ${file.name}`);
      const preview = file.image ? [picture(file.image, "")] : [];
      return made("span", [...preview, file.name, remove], "chip");
    }),
  );
}

function drop(file) {
  showFiles(files.filter((one) => one !== file));
  keepDraft();
}
