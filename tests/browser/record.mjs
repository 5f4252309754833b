/* A stream as the server says it, and the words that it is made of. */

export const chunk = (fields) => `data: ${JSON.stringify({ id: "chatcmpl-1", ...fields })}\n\n`;
export const says = (content, index = 0) => chunk({ choices: [{ index, delta: { content }, finish_reason: null }] });
export const ends = (finish_reason, more = {}, index = 0) => chunk({ choices: [{ index, delta: {}, finish_reason }], ...more });
export const told = (x_status) => chunk({ choices: [], x_status });
export const DONE = "data: [DONE]\n\n";
export const RECORD = [
  ": keep-alive\n\n",
  told({ state: "queued", position: 3, eta_ms: 4000 }),
  ": status preparing 0.4\n\n",
  chunk({ choices: [{ index: 0, delta: { role: "assistant", content: "" }, finish_reason: null }] }),
  'data: {"id": "chatcmpl-1",\ndata: "choices": []}\n\n', // one event, two lines
  says("Grüße "),
  says("👋🏽\u2028 \r\n"),
  ends("stop"),
  DONE,
].join("");
