// Anthropic's TypeScript SDK: messages; its `stream()` helper accumulates, its tool runner makes the whole loop.
import Anthropic from "@anthropic-ai/sdk";
import { checkSame, DESCRIPTION, PARAMETERS, QUESTION, report, reportVersions, URL, weather } from "./report.mjs";

const TOOL = { name: "get_weather", description: DESCRIPTION, input_schema: PARAMETERS };
const ASKED = { role: "user", content: QUESTION };
const client = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });

async function message(messages, stream) {
  const options = { model: "m", max_tokens: 2000, messages, tools: [TOOL] };
  const whole = await client.messages.create(options);
  if (!stream) return whole;
  const streamed = await client.messages.stream(options).finalMessage();
  const found = structuredClone(streamed);
  delete found.parsed_output;
  for (const block of found.content) delete block.parsed_output;
  checkSame(found, whole);
  return streamed;
}

const ofType = (answer, type) => answer.content.filter((block) => block.type === type);

function told(protocol, stream, first, second) {
  const calls = ofType(first, "tool_use").map((block) => [block.name, block.input]);
  const join = (answer, type, field) => ofType(answer, type).map((block) => block[field]).join("");
  report(protocol, stream, calls, join(second, "text", "text"),
    { text: join(first, "text", "text"), thought: join(first, "thinking", "thinking") });
}

async function loop(stream) {
  const first = await message([ASKED], stream);
  const results = ofType(first, "tool_use").map((block) => (
    { type: "tool_result", tool_use_id: block.id, content: weather(block.input) }
  ));
  const turns = [ASKED, { role: "assistant", content: first.content }, { role: "user", content: results }];
  told("messages", stream, first, await message(turns, stream));
}

async function loopOfRunner(stream) {
  const tool = { ...TOOL, parse: (input) => input, run: weather };
  const runner = client.beta.messages.toolRunner({
    model: "m", max_tokens: 2000, messages: [ASKED], tools: [tool], stream,
  });
  const turns = [];
  for await (const turn of runner) turns.push(stream ? await turn.finalMessage() : turn);
  told("messages, tool runner", stream, ...turns);
}

reportVersions("@anthropic-ai/sdk");
for (const stream of [false, true]) {
  await loop(stream);
  await loopOfRunner(stream);
}
