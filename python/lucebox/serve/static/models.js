// The models of the server. Where there are several, the select in the page's head chooses the one that requests name;
// the browser keeps the choice.
const NAME = "model";
const $ = (id) => document.getElementById(id);
let changed = () => {}; // called when another model is chosen, or the chosen one is loaded or unloaded
let names = [];
let state = null;

export function startModels(onChange) {
  changed = onChange;
  $("models").addEventListener("change", () => {
    keep($("models").value);
    state = null;
    changed();
  });
}

// The chosen model; null: the server has one.
export const chosenModel = () => (names.length > 1 ? $("models").value : null);

// A path with the chosen model.
export const withModel = (path) => (chosenModel() === null ? path : `${path}?model=${encodeURIComponent(chosenModel())}`);

// Shows the models of a status, by name.
export function showModels(models) {
  const found = Object.keys(models);
  let isNew = false; // the page has shown another model so far
  if (found.join("\n") !== names.join("\n")) {
    names = found;
    $("models").replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name })));
    if (names.includes(kept())) $("models").value = kept();
    isNew = $("models").value !== names[0];
  }
  for (const option of $("models").options) {
    const { value } = models[option.value];
    option.textContent = value === "loaded" ? option.value : `${option.value} (${value})`;
  }
  $("models").hidden = names.length < 2;
  $("model").textContent = names.length < 2 ? names[0] : "";
  const now = models[chosenModel() ?? names[0]].value;
  if (isNew || (state !== null && state !== now)) changed();
  state = now;
}

function kept() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null; // the browser keeps nothing for this page
  }
}

function keep(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // the choice lasts as long as the page
  }
}
