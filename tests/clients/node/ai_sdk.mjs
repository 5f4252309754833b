// Vercel's AI SDK as customers run it: its provider for whoever speaks as OpenAI does, and OpenAI's own for
// Responses.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";
import { serve } from "./driver.mjs";

serve(async (ask) => {
  const leaving = new AbortController();
  const settings = {
    model: model(ask),
    messages: ask.messages,
    allowSystemInMessages: true,
    maxRetries: ask.retries,
    abortSignal: leaving.signal,
    ...(ask.max_tokens && { maxOutputTokens: ask.max_tokens }),
    ...(ask.temperature !== null && { temperature: ask.temperature }),
    ...(ask.schema && { output: Output.object({ schema: jsonSchema(ask.schema) }) }),
    ...(ask.tools && { tools: Object.fromEntries(ask.tools.map(asTool)) }),
    ...(ask.tool_choice && { toolChoice: ask.tool_choice }),
  };
  return ask.stream ? await streamed(settings, ask, leaving) : await whole(settings);
});

function model(ask) {
  const settings = { name: "lockgate", apiKey: ask.key, baseURL: ask.base_url };
  if (ask.api === "responses") return createOpenAI(settings).responses(ask.model);
  const provider = createOpenAICompatible({
    ...settings,
    includeUsage: ask.usage,
    supportsStructuredOutputs: true,
  });
  return ask.api === "chat" ? provider(ask.model) : provider.completionModel(ask.model);
}

async function whole(settings) {
  const { text, finishReason, usage, toolCalls } = await generateText(settings);
  return { text, finish: finishReason, usage: counted(usage), calls: toolCalls.map(asCall) };
}

async function streamed(settings, ask, leaving) {
  const told = { text: "", finish: null, usage: null, calls: [], pieces: 0, left: false };
  for await (const part of streamText({ ...settings, onError() {} }).fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "tool-call") told.calls.push(asCall(part));
    if (part.type === "finish") {
      told.finish = part.finishReason;
      told.usage = counted(part.totalUsage);
    }
    if (part.type === "text-delta") {
      told.text += part.text;
      told.pieces += 1;
      if (ask.leave_after !== null && told.pieces >= ask.leave_after) {
        leaving.abort();
        return { ...told, left: true };
      }
    }
  }
  return told;
}

const asTool = ({ name, description, parameters }) => [
  name,
  tool({ description, inputSchema: jsonSchema(parameters) }),
];
const asCall = ({ toolName, input }) => ({ name: toolName, arguments: JSON.stringify(input) });
const counted = ({ inputTokens, outputTokens }) =>
  inputTokens === undefined ? null : [inputTokens, outputTokens];
