// What the scripts have in common: a line of JSON in is one ask, a line of JSON out what came of it.
// The shapes of both are in ../driving.py.
import { createInterface } from "node:readline";

/** Answers every ask with `answer(ask)`, `ask.times` of them at once. */
export async function serve(answer) {
  for await (const line of createInterface({ input: process.stdin })) {
    const ask = JSON.parse(line);
    const told = await Promise.all(Array.from({ length: ask.times }, () => attempt(answer, ask)));
    process.stdout.write(JSON.stringify(told) + "\n");
  }
}

async function attempt(answer, ask) {
  try {
    return { answer: { ...EMPTY, ...(await answer(ask)) } };
  } catch (error) {
    return { refused: refused(error.lastError ?? error) }; // AI SDK: what it gave up retrying
  }
}

const EMPTY = { text: "", finish: null, usage: null, calls: [], pieces: 0, left: false };

/** An error as its client shows it.  OpenAI's and LangChain's have the fields, AI SDK has the body. */
function refused(error) {
  const body = error.data?.error ?? error.error ?? {};
  return {
    kind: error.constructor.name,
    status: error.status ?? error.statusCode ?? null,
    type: error.type ?? body.type ?? null,
    code: error.code ?? body.code ?? null,
    param: error.param ?? body.param ?? null,
    message: String(error.message ?? body.message ?? error),
  };
}
