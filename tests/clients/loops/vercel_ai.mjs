// Vercel's AI SDK: generateText and streamText make the whole loop, over all three protocols.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { DESCRIPTION, PARAMETERS, QUESTION, report, reportVersions, URL, weather } from "./report.mjs";

const at = { baseURL: `${URL}/v1`, apiKey: "none" };
const MODELS = {
  "chat": createOpenAI(at).chat("m"),
  "chat, openai-compatible": createOpenAICompatible({ ...at, name: "lucebox" })("m"),
  "responses": createOpenAI(at).responses("m"),
  "messages": createAnthropic(at)("m"),
};

async function loop(protocol, stream) {
  const get_weather = tool({ description: DESCRIPTION, inputSchema: jsonSchema(PARAMETERS), execute: weather });
  const options = {
    model: MODELS[protocol],
    prompt: QUESTION,
    tools: { get_weather },
    stopWhen: stepCountIs(3),
    maxOutputTokens: 2000,
    maxRetries: 0,
    onError: ({ error }) => { throw error; },
  };
  let result;
  if (stream) {
    result = streamText(options);
    await result.consumeStream({ onError: (error) => { throw error; } });
  } else {
    result = await generateText(options);
  }
  const [first, second] = await result.steps;
  const calls = first.toolCalls.map((call) => [call.toolName, call.input]);
  report(protocol, stream, calls, second.text, { text: first.text, thought: first.reasoningText ?? null });
}

reportVersions("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic");
for (const stream of [false, true]) {
  for (const protocol of Object.keys(MODELS)) await loop(protocol, stream);
}
