/* What the module does with each kind of answer.  `test_module.py` runs this with Node. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { chat, LockgateError, resume } from "../../gateway/console/static/lockgate-stream.js";
import { chunk, DONE, ends, RECORD, says, told } from "./record.mjs";

const encoder = new TextEncoder();

/** A server of scripted answers: strings are pieces of a stream, "CUT" a broken connection; `requests` came. */
class Server {
  requests = [];
  waits = [];

  constructor(...answers) {
    this.answers = answers;
  }

  get options() {
    return {
      baseUrl: "https://llm.example/v1/",
      token: "t",
      body: { model: "m", messages: [] },
      fetch: (url, request) => this.answer(url, request),
      sleep: async (ms) => void this.waits.push(ms),
      random: () => 0,
    };
  }

  async answer(url, { signal, ...request }) {
    this.requests.push({ url, ...request });
    if (url.endsWith("/requests/cancel")) return Response.json({ cancelled: true });
    const next = this.answers.shift();
    if (next === undefined || next === "CUT") throw new TypeError("fetch failed");
    if (next instanceof Response) return next;
    const { pieces, replayed = false } = Array.isArray(next) ? { pieces: next } : next;
    const headers = { "content-type": "text/event-stream; charset=utf-8" };
    if (replayed) headers["idempotent-replayed"] = "true";
    const body = new ReadableStream({
      async start(controller) {
        signal.addEventListener("abort", () => { try { controller.error(signal.reason); } catch { /* closed */ } });
        for (const piece of pieces) {
          if (piece === "CUT") return controller.error(new TypeError("network error"));
          if (piece === "OPEN") return; // and nothing more comes
          controller.enqueue(encoder.encode(piece));
          await new Promise((resolve) => setImmediate(resolve)); // a cut would drop what is not read yet
        }
        controller.close();
      },
    });
    return new Response(body, { headers });
  }
}

async function heard(server, options = {}) {
  const states = [];
  const stream = chat({ ...server.options, onStatus: (status) => states.push(status), ...options });
  return { stream, states, last: await stream.done };
}

const refusal = (status, code, headers = {}) =>
  Response.json({ error: { message: "No.", type: "t", param: null, code } }, { status, headers });

test("a whole answer", async () => {
  const server = new Server([RECORD]);
  const { stream, states } = await heard(server);
  assert.deepEqual(states, [
    { state: "queued", position: null, etaMs: null },
    { state: "queued", position: 3, etaMs: 4000 },
    { state: "preparing", progress: 0.4 },
    { state: "streaming" },
    { state: "complete", finishReason: "stop" },
  ]);
  assert.equal(stream.text, "Grüße 👋🏽\u2028 \r\n");
  const [{ url, headers, body }] = server.requests;
  assert.equal(url, "https://llm.example/v1/chat/completions");
  assert.equal(headers.authorization, "Bearer t");
  assert.match(headers["idempotency-key"], /^[0-9a-f-]{36}$/);
  assert.deepEqual(JSON.parse(body), { model: "m", messages: [], stream: true, stream_options: { x_status: true } });
});

test("iterated, also by who comes late, by several, and by choice", async () => {
  const body = { model: "m", n: 2 };
  const server = new Server([says("a", 1), says("b"), ends("stop"), ends("length", { x_limit: { reason: "context" } }, 1), DONE]);
  const { stream, last } = await heard(server, { body });
  assert.deepEqual(last, { state: "limited", reason: "context" });
  for (let again = 0; again < 2; again++) {
    const seen = [];
    for await (const { text, index } of stream) seen.push([text, index]);
    assert.deepEqual(seen, [["a", 1], ["b", 0]]);
  }
});

test("a stream that is cut is taken up by the same key, and no text comes twice", async () => {
  const pieces = RECORD.split(/(?<=\n\n)/);
  for (let at = 1; at < pieces.length; at++) {
    for (const broken of [["CUT"], []]) { // a clean end without [DONE] is a cut like any other
      const server = new Server([...pieces.slice(0, at), ...broken], { pieces: [RECORD], replayed: true });
      const { stream, states, last } = await heard(server);
      assert.equal(stream.text, "Grüße 👋🏽\u2028 \r\n", `cut after ${at}`);
      assert.equal(last.state, "complete");
      assert.equal(states.filter(({ state }) => state === "preparing").length, 1);
      const [one, two] = server.requests;
      assert.deepEqual([one.headers, one.body], [two.headers, two.body], "the same key, the same request");
    }
  }
});

test("an answer that begins anew is never joined to another's text", async () => {
  const server = new Server([says("The old "), "CUT"], [says("Other words"), ends("stop"), DONE]);
  const { stream, last } = await heard(server);
  assert.equal(stream.text, "The old ");
  assert.deepEqual([last.state, last.code, last.retryable], ["failed", "restarted", true]);
});

test("where no text had come, an answer that begins anew is heard from its start", async () => {
  const server = new Server([told({ state: "queued", position: 1 }), "CUT"], [says("New"), ends("stop"), DONE]);
  const { stream, last } = await heard(server);
  assert.deepEqual([stream.text, last.state], ["New", "complete"]);
});

test("resume hears a stored answer from its first word", async () => {
  const first = new Server([RECORD]);
  const { stream } = await heard(first);
  const ticket = JSON.parse(JSON.stringify(stream.ticket));
  const { body: _, ...options } = new Server().options;
  const server = new Server({ pieces: [RECORD], replayed: true });
  const again = resume({ ...options, fetch: server.options.fetch, ticket });
  assert.equal((await again.done).state, "complete");
  assert.equal(again.text, stream.text);
  assert.equal(again.key, stream.key);
  assert.equal(server.requests[0].body, first.requests[0].body);
});

test("an end without [DONE] or without a finish reason is never complete", async () => {
  const silent = await heard(new Server(...Array.from({ length: 40 }, () => ({ pieces: [says("x")], replayed: true }))));
  assert.deepEqual([silent.last.state, silent.last.code, silent.last.retryable], ["failed", "connection_lost", true]);
  const noReason = await heard(new Server([says("x"), DONE]));
  assert.deepEqual([noReason.last.state, noReason.last.code], ["failed", "incomplete"]);
  const one = await heard(new Server([says("x"), ends("stop"), DONE]), { body: { model: "m", n: 2 } });
  assert.equal(one.last.state, "failed", "one of two choices has no end");
});

test("back-off grows, has a bound and is jittered; patience ends it", async () => {
  const server = new Server();
  const { last } = await heard(server, { patienceMs: 30_000 });
  assert.deepEqual(server.waits, [125, 250, 500, 1000, 2000, 4000, 4000, 4000, 4000, 4000, 4000]);
  assert.deepEqual([last.state, last.retryable, last.code], ["failed", true, "connection_lost"]);
  const jittered = new Server("CUT", [RECORD]);
  await heard(jittered, { random: () => 0.5 });
  assert.deepEqual(jittered.waits, [187.5]);
});

test("whatever brings something new begins the back-off anew", async () => {
  const cuts = Array.from({ length: 20 }, (_, at) => ({
    pieces: [...Array.from({ length: at + 1 }, (_, i) => says(`${i} `)), "CUT"],
    replayed: at > 0,
  }));
  const server = new Server(...cuts);
  const { stream, last } = await heard(server, { patienceMs: 1000 });
  assert.equal(stream.text, Array.from({ length: 20 }, (_, i) => `${i} `).join(""));
  assert.deepEqual(server.waits, [...Array(20).fill(125), 250, 500], "and patience begins anew, too");
  assert.equal(last.state, "failed");
});

test("what is retried, how long it waits, and what is not", async () => {
  for (const [answer, waitMs] of [
    [refusal(409, "idempotency_in_flight", { "retry-after": "2" }), 2000],
    [refusal(503, "overloaded", { "retry-after": "7" }), 7000],
    [refusal(503, "overloaded", { "retry-after": "7", "retry-after-ms": "6500" }), 6500],
    [refusal(429, "rate_limit_exceeded", { "retry-after": "1" }), 1000],
    [refusal(408, "queue_deadline", {}), 125],
    [refusal(400, "odd", { "x-should-retry": "true" }), 125],
    [new Response("<html>502</html>", { status: 502 }), 125],
  ]) {
    const server = new Server(answer, [RECORD]);
    assert.equal((await heard(server)).last.state, "complete");
    assert.deepEqual(server.waits, [waitMs]);
  }
  for (const [status, code, headers, retryable, afterMs] of [
    [400, "invalid_request", {}, false, null],
    [401, "invalid_api_key", {}, false, null],
    [409, "idempotency_result_gone", { "x-should-retry": "false" }, false, null],
    [422, "idempotency_key_reuse", {}, false, null],
    [429, "queue_backlog", { "x-should-retry": "false", "retry-after": "300" }, true, 300_000],
  ]) {
    const server = new Server(refusal(status, code, headers));
    const { last } = await heard(server);
    assert.deepEqual(last, { state: "failed", retryable, afterMs, code, message: "No." });
    assert.equal(server.requests.length, 1);
  }
});

test("a wait beyond patience is told instead of waited for", async () => {
  const { last } = await heard(new Server(refusal(503, "overloaded", { "retry-after": "60" })), { patienceMs: 5000 });
  assert.deepEqual([last.state, last.retryable, last.afterMs], ["failed", true, 60_000]);
});

test("a spent budget is a limit, before it began as after", async () => {
  const { last } = await heard(new Server(refusal(429, "insufficient_quota", { "x-should-retry": "false" })));
  assert.deepEqual(last, { state: "limited", reason: "token_budget" });
  for (const reason of ["token_budget", "max_tokens", "context"]) {
    const server = new Server([says("x"), ends("length", { x_limit: { reason } }), DONE]);
    assert.deepEqual((await heard(server)).last, { state: "limited", reason });
  }
});

const fault = (retryable, retry_after_ms) =>
  `data: ${JSON.stringify({ error: { message: "Broke.", code: "executor_lost" }, x_status: { state: "failed", retryable, retry_after_ms } })}\n\n${DONE}`;

test("an error in mid-stream is failed, and asked again only by who had heard nothing", async () => {
  const server = new Server([told({ state: "preparing", progress: 1 }), fault(true, 3000)], [RECORD]);
  assert.equal((await heard(server)).last.state, "complete");
  assert.deepEqual(server.waits, [3000]);
  const record = [told({ state: "preparing", progress: 1 }), fault(true, null)];
  const ending = new Server(record, { pieces: record, replayed: true }, [RECORD]); // it is still being put away
  assert.equal((await heard(ending)).last.state, "complete");
  const spoken = new Server([says("x"), fault(true, 3000)]);
  const { last } = await heard(spoken);
  assert.deepEqual(last, { state: "failed", retryable: true, afterMs: 3000, code: "executor_lost", message: "Broke." });
  assert.equal((await heard(new Server([fault(false, null)]))).last.retryable, false);
});

test("one that is preempted is queued again, and its text goes on", async () => {
  const server = new Server([says("a"), told({ state: "queued", position: 0 }), says("b"), ends("stop"), DONE]);
  const { stream, states } = await heard(server);
  assert.deepEqual(states.map(({ state }) => state), ["queued", "preparing", "streaming", "queued", "preparing", "streaming", "complete"]);
  assert.equal(stream.text, "ab");
});

test("cancel ends it here and says so to the server, once", async () => {
  const server = new Server([says("x"), "OPEN"]);
  let first;
  const spoke = new Promise((resolve) => (first = resolve));
  const stream = chat({ ...server.options, onDelta: first });
  await spoke;
  await stream.cancel();
  await stream.cancel();
  assert.equal((await stream.done).code, "cancelled");
  const cancels = server.requests.filter(({ url }) => url.endsWith("/v1/requests/cancel"));
  assert.deepEqual(cancels.map(({ body }) => JSON.parse(body)), [{ idempotency_key: stream.key }]);
  assert.equal(cancels[0].headers.authorization, "Bearer t");
  assert.equal(cancels[0].keepalive, true, "it is sent also while the page goes away");
  for await (const { text } of stream) assert.equal(text, "x"); // no error: it was wished
});

test("who leaves the iteration cancels, and who hears its end does not", async () => {
  const server = new Server([says("a"), "OPEN"]);
  const stream = chat(server.options);
  for await (const _ of stream) break;
  assert.equal((await stream.done).code, "cancelled");
  const whole = new Server([RECORD]);
  for await (const _ of chat(whole.options));
  assert.equal(whole.requests.length, 1);
});

test("a failed answer ends its iteration with an error", async () => {
  const stream = chat(new Server([says("x"), fault(true, null)]).options);
  const seen = [];
  await assert.rejects(async () => { for await (const { text } of stream) seen.push(text); }, LockgateError);
  assert.deepEqual(seen, ["x"]);
});

test("a connection that says nothing is given up and opened again", async () => {
  const server = new Server([says("a"), "OPEN"], { pieces: [says("a"), says("b"), ends("stop"), DONE], replayed: true });
  const { stream, last } = await heard(server, { silenceMs: 20 });
  assert.deepEqual([stream.text, last.state, server.requests.length], ["ab", "complete", 2]);
});

test("what is no event stream is said to be none", async () => {
  const page = new Response("<html>", { headers: { "content-type": "text/html" } });
  for (const server of [new Server(page), new Server(["data: {broken\n\n"])]) {
    assert.equal((await heard(server)).last.code, "not_an_event_stream");
  }
});

test("a callback that throws ends it and is heard of", async () => {
  const stream = chat({ ...new Server([RECORD]).options, onDelta: () => { throw new Error("mine"); } });
  await assert.rejects(stream.done, /mine/);
  assert.deepEqual([stream.status.state, stream.status.code], ["failed", "client_error"]);
});

test("each request has a fresh token and its own further headers", async () => {
  let count = 0;
  const server = new Server("CUT", [RECORD]);
  await heard(server, { token: async () => `t${++count}`, headers: (method, url) => ({ dpop: `${method} ${url}` }) });
  assert.deepEqual(server.requests.map(({ headers }) => headers.authorization), ["Bearer t1", "Bearer t2"]);
  assert.equal(server.requests[0].headers.dpop, "POST https://llm.example/v1/chat/completions");
});

test("the request cannot change under its key", async () => {
  const server = new Server("CUT", [RECORD]);
  const body = { model: "m", messages: [{ role: "user", content: "a" }] };
  const { last } = await heard(server, { body, sleep: async () => void (body.messages[0].content = "b") });
  assert.equal(last.state, "complete");
  assert.equal(server.requests[0].body, server.requests[1].body);
});

// What the README says of it.

test("the page in the README is one that works", async () => {
  const readme = readFileSync(new URL("../../gateway/console/README.md", import.meta.url), "utf8");
  const [imports, ...lines] = /```js\n([^]*?)```/.exec(readme)[1].trim().split("\n");
  assert.equal(imports, 'import { chat } from "./lockgate-stream.js";');
  assert.ok(lines.length <= 15);
  const server = new Server([RECORD]);
  const kept = new Map();
  const page = {
    chat: (options) => chat({ ...server.options, ...options }),
    fetch: async () => new Response("fresh"),
    line: {},
    answer: { said: "", append: (text) => (page.answer.said += text) },
    stop: {},
    sessionStorage: { setItem: (name, value) => kept.set(name, value), removeItem: (name) => kept.delete(name) },
  };
  const AsyncFunction = (async () => {}).constructor;
  const state = await new AsyncFunction(...Object.keys(page), `${lines.join("\n")}\nreturn state;`)(...Object.values(page));
  assert.deepEqual([state, page.line.textContent, page.answer.said], ["complete", "complete", "Grüße 👋🏽\u2028 \r\n"]);
  assert.equal(server.requests[0].headers.authorization, "Bearer fresh");
  assert.deepEqual([kept.size, typeof page.stop.onclick], [0, "function"]);
});
