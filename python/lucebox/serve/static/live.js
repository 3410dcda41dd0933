// The live view: polls /status once a second.
import { showModels, withModel } from "/static/models.js";
import { getJson } from "/static/server.js";

const PERIOD_MS = 1000;
const POINTS = 120;
const $ = (id) => document.getElementById(id);
const speeds = []; // tokens per second, newest last
let before = null; // the previous status

export async function startLive() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

async function refresh() {
  try {
    const status = await getJson(withModel("/status"));
    $("connection").textContent = "";
    show(status);
    before = status;
  } catch (error) {
    $("connection").textContent = error.message;
  }
}

function show(status) {
  showModels(status.models);
  const sparse = status.sparse_prefill > 0 ? `, block-sparse prompts (${status.sparse_prefill})` : "";
  $("place").textContent = `${status.device}: ${status.device_name ?? status.state}, context ${status.context}${sparse}`;
  $("unused-gpus").textContent = (status.unused_gpus ?? []).join("\n");
  $("unused-gpus").hidden = !status.unused_gpus?.length;
  const seconds = before ? status.uptime_s - before.uptime_s : 0;
  const speed = seconds > 0 ? (status.totals.generated_tokens - before.totals.generated_tokens) / seconds : 0;
  speeds.push(speed);
  if (speeds.length > POINTS) speeds.shift();
  showCards(status, speed);
  showCurve();
  if (status.memory) showMemory(status.memory, status.kv_pages, status.prefix_cache, status.compression);
  else $("memory").replaceChildren(row("when loaded", size(status.models[status.model].memory_bytes)));
  showRequests(status.requests);
}

function showCards(status, speed) {
  const { totals, requests, device_load: load } = status;
  const last = requests.at(-1);
  const cards = {
    "tok/s now": speed.toFixed(1),
    "decode tok/s": rate(totals.generated_tokens, totals.decode_s),
    ...(status.draft === "none" || status.draft === null ? {} : { "tokens per verify": acceptance(totals) }),
    "prefill tok/s": rate(totals.prompt_tokens - totals.cached_tokens, totals.prefill_s),
    "time to first token": last?.first_token_s == null ? "–" : `${last.first_token_s.toFixed(2)} s`,
    "running / slots": `${status.running} / ${status.slots}`,
    "sequences per step": since(totals, "sequences", "steps"),
    "rows per pass": since(totals, "rows", "passes"),
    waiting: status.waiting,
    "cached prompt tokens": totals.prompt_tokens ? percent(totals.cached_tokens / totals.prompt_tokens) : "–",
    ...(status.compression === null ? {} : { "prompt tokens left out": totals.cut_tokens }),
    "generated tokens": totals.generated_tokens,
    "device load": load === null || load.busy === null ? "–" : percent(load.busy),
    power: load === null || load.watts === null ? "–" : `${load.watts.toFixed(0)} W`,
  };
  $("cards").replaceChildren(
    ...Object.entries(cards).map(([name, value]) => {
      const card = filled("div", ["b", value], ["span", name]);
      card.className = "card";
      card.dataset.name = name;
      return card;
    }),
  );
}

// The mean of what happened since the last status, else since the start.
function since(totals, sum, count) {
  const old = before && totals[count] > before.totals[count] ? before.totals : { [sum]: 0, [count]: 0 };
  return totals[count] > 0 ? ((totals[sum] - old[sum]) / (totals[count] - old[count])).toFixed(1) : "–";
}

// Accepted tokens per verified draft, and the one sampled behind them: since the last status, else since the start.
function acceptance({ verifies, accepted_tokens: accepted }) {
  const old = before && verifies > before.totals.verifies ? before.totals : { verifies: 0, accepted_tokens: 0 };
  return verifies > 0 ? (1 + (accepted - old.accepted_tokens) / (verifies - old.verifies)).toFixed(2) : "–";
}

function showCurve() {
  const top = Math.max(1, ...speeds);
  $("peak").textContent = `peak of two minutes: ${Math.max(...speeds).toFixed(1)} tok/s`;
  const x = (i) => ((POINTS - speeds.length + i) * 240) / (POINTS - 1);
  const points = speeds.map((speed, i) => `${x(i)},${46 - (44 * speed) / top}`);
  $("curve").firstElementChild.setAttribute("points", points.join(" "));
}

function showMemory({ entries, mapped_bytes: mapped, available_bytes: available, place }, pages, cache, compression) {
  const rows = [
    ...entries.map(({ name, bytes }) => [name, bytes]),
    ["weights, mapped from the file", mapped],
    ...(compression === null ? [] : [[`scorer ${compression.scorer}`, compression.scorer_bytes]]),
    ["prefix cache, main memory", cache.memory_bytes],
    ["prefix cache, disk", cache.disk_bytes],
  ];
  const planned = entries.reduce((sum, { bytes }) => sum + bytes, 0);
  const bar = filled("div", ["i", ""]);
  bar.className = "bar";
  bar.firstChild.style.width = percent(Math.min(1, planned / Math.max(1, available)));
  $("memory").replaceChildren(
    row(`planned / free on ${place} at start`, `${size(planned)} / ${size(available)}`),
    bar,
    row("pages of the KV cache, used / all", `${pages.total - pages.free} / ${pages.total}`),
    ...rows.filter(([, bytes]) => bytes > 0).map(([name, bytes]) => row(name, size(bytes))),
  );
}

function showRequests(requests) {
  const rows = requests.toReversed().map((one) =>
    filled(
      "tr",
      ["td", new Date(one.ended_at * 1000).toLocaleTimeString()],
      ["td", one.endpoint],
      ["td", one.outcome],
      ["td", one.original_tokens === null ? one.prompt_tokens : `${one.prompt_tokens} of ${one.original_tokens}`],
      ["td", one.cached_tokens],
      ["td", one.generated_tokens],
      ["td", `${one.queue_s.toFixed(2)} s`],
      ["td", `${one.prefill_s.toFixed(2)} s`],
      ["td", rate(one.generated_tokens, one.decode_s)],
      ["td", one.verifies > 0 ? (1 + one.accepted_tokens / one.verifies).toFixed(2) : "–"],
    ),
  );
  $("requests").tBodies[0].replaceChildren(...rows);
}

function filled(tag, ...children) {
  const made = document.createElement(tag);
  for (const [name, text] of children) made.append(Object.assign(document.createElement(name), { textContent: text }));
  return made;
}

function row(name, value) {
  const made = filled("div", ["span", name], ["span", value]);
  made.className = "row";
  return made;
}

const rate = (tokens, seconds) => (seconds > 0 ? (tokens / seconds).toFixed(1) : "–");
const percent = (share) => `${(100 * share).toFixed(0)}%`;

function size(bytes) {
  if (bytes < 2 ** 20) return `${(bytes / 2 ** 10).toFixed(0)} KiB`;
  return bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(0)} MiB` : `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}
