// openai-node as customers run it.
import OpenAI from "openai";
import { serve } from "./driver.mjs";

serve(async (ask) => {
  const ai = new OpenAI({ apiKey: ask.key, baseURL: ask.base_url, maxRetries: ask.retries });
  return await { chat, completions, models, responses }[ask.api](ai, ask);
});

async function chat(ai, ask) {
  const body = {
    model: ask.model,
    messages: ask.messages,
    ...(ask.max_tokens && { max_tokens: ask.max_tokens }),
    ...(ask.temperature !== null && { temperature: ask.temperature }),
    ...(ask.schema && { response_format: form(ask.schema) }),
    ...(ask.tools && { tools: ask.tools.map((tool) => ({ type: "function", function: tool })) }),
    ...(ask.tool_choice && { tool_choice: ask.tool_choice }),
  };
  if (!ask.stream) {
    const whole = await ai.chat.completions.create(body);
    const { message, finish_reason } = whole.choices[0];
    return {
      text: message.content ?? "",
      finish: finish_reason,
      usage: counted(whole.usage),
      calls: (message.tool_calls ?? []).map((call) => call.function),
    };
  }
  const told = { text: "", finish: null, usage: null, calls: [], pieces: 0, left: false };
  for await (const chunk of await ai.chat.completions.create(streamed(body, ask))) {
    told.usage = counted(chunk.usage) ?? told.usage;
    for (const { delta, finish_reason } of chunk.choices) {
      told.finish = finish_reason ?? told.finish;
      told.text += delta.content ?? "";
      told.pieces += delta.content ? 1 : 0;
      for (const { index, function: call } of delta.tool_calls ?? []) {
        const known = (told.calls[index] ??= { name: "", arguments: "" });
        known.name += call.name ?? "";
        known.arguments += call.arguments ?? "";
      }
    }
    if (ask.leave_after !== null && told.pieces >= ask.leave_after) {
      return { ...told, left: true }; // ending the loop ends the request
    }
  }
  return told;
}

async function completions(ai, ask) {
  const body = {
    model: ask.model,
    prompt: ask.messages[0].content,
    ...(ask.max_tokens && { max_tokens: ask.max_tokens }),
  };
  if (!ask.stream) {
    const whole = await ai.completions.create(body);
    const { text, finish_reason } = whole.choices[0];
    return { text, finish: finish_reason, usage: counted(whole.usage) };
  }
  const told = { text: "", finish: null, usage: null, pieces: 0 };
  for await (const chunk of await ai.completions.create(streamed(body, ask))) {
    told.usage = counted(chunk.usage) ?? told.usage;
    for (const { text, finish_reason } of chunk.choices) {
      told.finish = finish_reason ?? told.finish;
      told.text += text;
      told.pieces += text ? 1 : 0;
    }
  }
  return told;
}

async function responses(ai, ask) {
  const body = {
    model: ask.model,
    input: ask.messages,
    ...(ask.max_tokens && { max_output_tokens: ask.max_tokens }),
    ...(ask.temperature !== null && { temperature: ask.temperature }),
    ...(ask.schema && { text: { format: { type: "json_schema", name: "it", schema: ask.schema } } }),
    ...(ask.tools && { tools: ask.tools.map((tool) => ({ type: "function", ...tool })) }),
    ...(ask.tool_choice && { tool_choice: ask.tool_choice }),
  };
  if (!ask.stream) return response(await ai.responses.create(body));
  let text = "", pieces = 0;
  for await (const event of await ai.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") {
      text += event.delta;
      pieces += 1;
      if (ask.leave_after !== null && pieces >= ask.leave_after) return { text, pieces, left: true };
    }
    if (event.type === "response.failed") throw event.response;
    if (event.type === "response.completed" || event.type === "response.incomplete") {
      const whole = response(event.response);
      if (whole.text !== text) throw new Error(`deltas ${text}, whole ${whole.text}`);
      return { ...whole, pieces };
    }
  }
  throw new Error("the stream ended without a last word");
}

const response = ({ status, output, usage }) => ({
  text: output
    .flatMap((item) => item.content ?? [])
    .map((part) => part.text ?? "")
    .join(""),
  finish: { completed: "stop", incomplete: "length" }[status] ?? status,
  usage: [usage.input_tokens, usage.output_tokens],
  calls: output.filter((item) => item.type === "function_call"),
});

async function models(ai, ask) {
  const names = [];
  for await (const model of ai.models.list()) names.push(model.id);
  const one = await ai.models.retrieve(ask.model);
  return { text: names.join(" "), finish: one.id };
}

const streamed = (body, ask) => ({
  ...body,
  stream: true,
  ...(ask.usage && { stream_options: { include_usage: true } }),
});
const counted = (usage) => usage && [usage.prompt_tokens, usage.completion_tokens];
const form = (schema) => ({ type: "json_schema", json_schema: { name: "it", schema, strict: true } });
