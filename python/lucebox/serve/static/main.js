// The page at "/": a chat on the left, the live view of the server on the right. Text leaves this tab in requests only.
import { startChat } from "/static/chat.js";
import { startLive } from "/static/live.js";
import { getJson } from "/static/server.js";

startLive();
const key = document.getElementById("key");
const controls = document.getElementById("controls");

// Shows the server's defaults as placeholders of empty fields. Repeated when the API key changes.
async function showDefaults() {
  const props = await getJson("/props").catch(() => null);
  controls.open ||= props === null;
  for (const [name, value] of Object.entries(props?.default_generation_settings.params ?? {})) {
    const field = document.querySelector(`#controls input[name="${name}"]`);
    if (field && value !== null) field.placeholder = value;
  }
}
key.addEventListener("change", showDefaults);
await showDefaults();
startChat();
