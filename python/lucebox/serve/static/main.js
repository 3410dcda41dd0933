// The page at "/": the kept chats, a chat, and the live view of the server. Text leaves this browser in requests only.
import { changeSettings, edit, editLast, isBusy, openChat, resumeAll, send, startChat, stop } from "/static/chat.js";
import { newChat, search, showList, startChats } from "/static/chats.js";
import { startComposer } from "/static/composer.js";
import { startLayout } from "/static/layout.js";
import { startLive } from "/static/live.js";
import { startModels, withModel } from "/static/models.js";
import { setContext } from "/static/progress.js";
import { getJson } from "/static/server.js";
import { startSettings } from "/static/settings.js";
import { startShortcuts } from "/static/shortcuts.js";

const controls = document.getElementById("controls");

// Shows the model's defaults as placeholders of empty fields. Repeated when the API key or the model changes.
async function showDefaults() {
  const props = await getJson(withModel("/props")).catch(() => null);
  controls.open ||= props === null;
  setContext(props?.default_generation_settings.n_ctx ?? null);
  for (const field of controls.querySelectorAll("input[name]")) field.placeholder = "";
  for (const [name, value] of Object.entries(props?.default_generation_settings.params ?? {})) {
    const field = controls.querySelector(`input[name="${name}"]`);
    if (field && value !== null) field.placeholder = value;
  }
}

startLayout();
startModels(showDefaults);
startLive();
startComposer(send);
startSettings(changeSettings);
startShortcuts({ escape: () => (isBusy() ? stop() : edit(null)), editLast, search, newChat });
document.getElementById("key").addEventListener("change", showDefaults);
startChats();
startChat(showList);
await openChat(location.hash.slice(1) || null).catch(() => openChat(null));
await Promise.all([showDefaults(), resumeAll()]);
