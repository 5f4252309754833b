// LangChain.js as customers run it.
import { ChatOpenAI, OpenAI } from "@langchain/openai";
import { serve } from "./driver.mjs";

serve(async (ask) => {
  const settings = {
    model: ask.model,
    apiKey: ask.key,
    configuration: { baseURL: ask.base_url },
    maxRetries: ask.retries,
    streamUsage: ask.usage,
    ...(ask.max_tokens && { maxTokens: ask.max_tokens }),
    ...(ask.temperature !== null && { temperature: ask.temperature }),
  };
  if (ask.api === "completions") return await completions(settings, ask);
  return await chat(new ChatOpenAI({ ...settings, useResponsesApi: ask.api === "responses" }), ask);
});

async function chat(llm, ask) {
  const bound = {
    ...(ask.schema && { response_format: form(ask.schema) }),
    ...(ask.tools && { tools: ask.tools.map((tool) => ({ type: "function", function: tool })) }),
    ...(ask.tool_choice && { tool_choice: ask.tool_choice }),
  };
  const leaving = new AbortController();
  if (!ask.stream) return read(await llm.invoke(ask.messages, bound));
  let all, pieces = 0;
  for await (const chunk of await llm.stream(ask.messages, { ...bound, signal: leaving.signal })) {
    all = all ? all.concat(chunk) : chunk;
    pieces += chunk.text ? 1 : 0;
    if (ask.leave_after !== null && pieces >= ask.leave_after) {
      leaving.abort();
      return { ...read(all), pieces, left: true };
    }
  }
  return { ...read(all), pieces };
}

async function completions(settings, ask) {
  const llm = new OpenAI(settings);
  const prompt = ask.messages[0].content;
  if (!ask.stream) return { text: await llm.invoke(prompt) };
  const told = { text: "", pieces: 0 };
  for await (const text of await llm.stream(prompt)) {
    told.text += text;
    told.pieces += text ? 1 : 0;
  }
  return told;
}

const read = (message) => ({
  text: message.text,
  finish: finish(message.response_metadata),
  usage: message.usage_metadata
    ? [message.usage_metadata.input_tokens, message.usage_metadata.output_tokens]
    : null,
  calls: (message.tool_calls ?? []).map(({ name, args }) => ({
    name,
    arguments: JSON.stringify(args),
  })),
});
const finish = ({ finish_reason, status }) =>
  finish_reason ?? { completed: "stop", incomplete: "length" }[status] ?? null;
const form = (schema) => ({ type: "json_schema", json_schema: { name: "it", schema, strict: true } });
