// What a loop in JavaScript prints: one JSON line per conversation, which ci/sdk_loops.py compares with the script.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export const URL = process.argv[2];
export const QUESTION = "How is the weather in Oslo and Zürich?";
export const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const DESCRIPTION = "The weather of a city.";
// Fields that differ between two answers to one request: ids, times, drafts, cached tokens.
const VOLATILE = new Set(
  ["id", "item_id", "call_id", "tool_call_id", "created", "created_at", "completed_at", "timings", "usage"],
);

export const weather = ({ city }) => `${city}: sunny`;

// text, thought: of the first turn, where the client has them.
export function report(protocol, stream, calls, answer, { text = null, thought = null } = {}) {
  console.log(JSON.stringify({ protocol, stream, thought, text, calls, answer }));
}

export function reportVersions(...packages) {
  const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;
  console.log(JSON.stringify({ versions: packages.map((name) => `${name} ${version(name)}`).join(" ") }));
}

// A message without what differs between two answers to one request, and without absent fields.
function comparable(value) {
  if (Array.isArray(value)) return value.map(comparable);
  if (value === null || typeof value !== "object") return value;
  const kept = Object.entries(value).filter(([key, item]) => !VOLATILE.has(key) && item != null);
  return Object.fromEntries(kept.map(([key, item]) => [key, comparable(item)]));
}

// The SDK's accumulation of a stream is the document of the same request.
export const checkSame = (streamed, whole) => assert.deepEqual(comparable(streamed), comparable(whole));
