// openai-node: chat completions and responses; its `stream()` helpers accumulate.
import OpenAI from "openai";
import { checkSame, DESCRIPTION, PARAMETERS, QUESTION, report, reportVersions, URL, weather } from "./report.mjs";

const FUNCTION = { name: "get_weather", description: DESCRIPTION, parameters: PARAMETERS };
const ASKED = { role: "user", content: QUESTION };
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });

async function chat(messages, stream) {
  const options = { model: "m", messages, tools: [{ type: "function", function: FUNCTION }] };
  const whole = (await client.chat.completions.create(options)).choices[0];
  if (!stream) return whole.message;
  // The helper keeps only the last delta of a field that it does not know. Such a thought must not go back.
  delete whole.message.reasoning_content;
  const choice = (await client.chat.completions.stream(options).finalChatCompletion()).choices[0];
  delete choice.message.reasoning_content;
  const message = structuredClone(choice.message);
  delete message.parsed;
  for (const call of message.tool_calls ?? []) delete call.function.parsed_arguments;
  checkSame({ ...choice, message }, whole);
  return choice.message;
}

async function loopOfChat(stream) {
  const first = await chat([ASKED], stream);
  const calls = first.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  const results = first.tool_calls.map((call, i) => (
    { role: "tool", tool_call_id: call.id, content: weather(calls[i][1]) }
  ));
  const second = await chat([ASKED, first, ...results], stream);
  report("chat", stream, calls, second.content, { text: first.content, thought: first.reasoning_content });
}

async function response(stream, options) {
  const all = { ...options, model: "m", tools: [{ type: "function", ...FUNCTION }] };
  const whole = await client.responses.create(all);
  if (!stream) return whole;
  const streamed = await client.responses.stream(all).finalResponse();
  const found = structuredClone(streamed);
  delete found.output_parsed;
  for (const item of found.output) {
    delete item.parsed_arguments;
    for (const part of item.content ?? []) delete part.parsed;
  }
  checkSame(found, whole);
  return streamed;
}

async function loopOfResponses(stream, stored) {
  const first = await response(stream, { input: [ASKED] });
  const found = first.output.filter((item) => item.type === "function_call");
  const calls = found.map((call) => [call.name, JSON.parse(call.arguments)]);
  const results = found.map((call, i) => (
    { type: "function_call_output", call_id: call.call_id, output: weather(calls[i][1]) }
  ));
  const second = stored
    ? await response(stream, { input: results, previous_response_id: first.id })
    : await response(stream, { input: [ASKED, ...first.output, ...results] });
  const thought = first.output.find((item) => item.type === "reasoning").content.map((part) => part.text).join("");
  report(stored ? "responses, stored" : "responses", stream, calls, second.output_text,
    { text: first.output_text, thought });
}

async function loopOfRunner(stream) {
  const runner = client.chat.completions.runTools({
    model: "m",
    stream,
    messages: [ASKED],
    tools: [{ type: "function", function: { ...FUNCTION, parse: JSON.parse, function: weather } }],
  });
  const answer = await runner.finalContent();
  const first = runner.messages[1];
  const calls = first.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  report("chat, runTools", stream, calls, answer, { text: first.content });
}

reportVersions("openai");
for (const stream of [false, true]) {
  await loopOfChat(stream);
  await loopOfRunner(stream);
  await loopOfResponses(stream, false);
  await loopOfResponses(stream, true);
}
