// The page at "/": the kept chats, a chat, and the live view of the server. Text leaves this browser in requests only.
import { startChats } from "/static/chats.js";
import { startLive } from "/static/live.js";
import { getJson } from "/static/server.js";
import { restoreSettings } from "/static/settings.js";

const controls = document.getElementById("controls");

// Narrow windows show one view, or the chat and one view beside it.
for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => (document.body.dataset.pane = button.dataset.pane));
}

// Shows the server's defaults as placeholders of empty fields. Repeated when the API key changes.
async function showDefaults() {
  const props = await getJson("/props").catch(() => null);
  controls.open ||= props === null;
  for (const [name, value] of Object.entries(props?.default_generation_settings.params ?? {})) {
    const field = controls.querySelector(`input[name="${name}"]`);
    if (field && value !== null) field.placeholder = value;
  }
}

startLive();
restoreSettings();
document.getElementById("key").addEventListener("change", showDefaults);
await startChats();
await showDefaults();
