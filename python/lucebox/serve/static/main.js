// The page at "/": a chat on the left, what the server does on the right. No text of it leaves this tab but for the
// requests themselves.
import { startChat } from "/static/chat.js";
import { startLive } from "/static/live.js";
import { getJson } from "/static/server.js";

startLive();
const key = document.getElementById("key");
const controls = document.getElementById("controls");

// What the server would choose for the fields left empty. Asked again when a key is given.
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
