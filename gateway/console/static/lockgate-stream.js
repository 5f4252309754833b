/* One streamed answer of a Lockgate, for a page: where it stands, its text, and its end told once.
 *
 * Theory of operation.  Each question has a key (Idempotency-Key).  By it the server runs the work once and
 * records what it says, so a connection that was cut is opened again by the same key and hears the same events
 * from the first; as many as were heard are skipped.  Text is never told twice, work never done twice.  What the
 * page sees is one machine, `TRANSITIONS`; whatever would lead out of it does not happen.
 *
 * No dependency, no build step.  Refuses to know: the page, storage, what the text means.
 * Source: API.md §3 (the contract), the WHATWG HTML standard §9.2 (event streams). */

/** From each state, those that may follow; a state may also tell itself anew (a place, a progress). */
export const TRANSITIONS = Object.freeze({
  queued: Object.freeze(["preparing", "limited", "failed"]),
  preparing: Object.freeze(["streaming", "failed"]),
  streaming: Object.freeze(["queued", "complete", "limited", "failed"]), // queued: preempted, the text stands
  complete: Object.freeze([]),
  limited: Object.freeze([]),
  failed: Object.freeze([]),
});

const EVENT_CHARS_MAX = 8 << 20;
const RETRIED = new Set([408, 409, 429]); // and 5xx, unless x-should-retry says otherwise
const BACKOFF_MS = 250;
const BACKOFF_MS_MAX = 8_000;

/** Where an answer stands.  A stage too short to be told is passed through, never jumped over. */
export class Progress {
  #told;

  constructor(onStatus = () => {}) {
    this.#told = onStatus;
    this.status = Object.freeze({ state: "queued", position: null, etaMs: null });
  }

  get isOver() {
    return TRANSITIONS[this.status.state].length === 0;
  }

  /** Go where `status` says, if the table has a way.  Returns whether it has; null goes nowhere. */
  enter(status) {
    if (status === null) return false;
    const forward = ["streaming", "complete", "limited"].includes(status.state);
    while (!this.#mayFollow(status)) {
      if (this.isOver || !forward) return false;
      const missed = this.status.state === "queued" ? "preparing" : "streaming";
      this.#tell(missed === "preparing" ? { state: missed, progress: null } : { state: missed });
    }
    this.#tell(status);
    return true;
  }

  #mayFollow({ state }) {
    const anew = state === this.status.state && !this.isOver;
    return anew || TRANSITIONS[this.status.state].includes(state);
  }

  #tell(status) {
    if (JSON.stringify(status) === JSON.stringify(this.status)) return; // nothing new
    this.status = Object.freeze(status);
    this.#told(this.status);
  }
}

/** Bytes, cut anywhere, to events and comments. */
export class EventParser {
  #decoder = new TextDecoder(); // keeps half a character for the next chunk, and drops a leading BOM
  #rest = "";
  #afterCr = false;
  #data = [];
  #chars = 0; // of the event that is coming

  /** What `bytes` complete: `{comment}` or `{data}`, in order.  An event without its blank line is none. */
  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    if (this.#afterCr && text[0] === "\n") text = text.slice(1); // CRLF across two chunks
    this.#afterCr = text.endsWith("\r");
    const lines = text.split(/\r\n|\r|\n/);
    lines[0] = this.#rest + lines[0];
    this.#rest = lines.pop();
    this.#chars += text.length;
    if (this.#chars > EVENT_CHARS_MAX) throw new Lost("an event without end");
    return lines.flatMap((line) => this.#line(line));
  }

  #line(line) {
    if (line[0] === ":") return [{ comment: line.slice(1).trim() }];
    if (line !== "") {
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === "data") this.#data.push(value);
      return []; // `event`, `id` and `retry` say nothing here
    }
    const data = this.#data.splice(0);
    this.#chars = 0;
    return data.length > 0 ? [{ data: data.join("\n") }] : [];
  }
}

/** `status queued 3 4000` or `status preparing 0.4` as a status; null for any other comment. */
export function statusOfComment(comment) {
  const [word, state, ...facts] = comment.split(" ");
  if (word !== "status") return null;
  const [first, second] = facts.map(Number);
  return statusOf({ state, position: first, eta_ms: second, progress: first });
}

function statusOf({ state, position, eta_ms, progress }) {
  if (state === "queued") return { state, position: finite(position), etaMs: finite(eta_ms) };
  if (state === "preparing") return { state, progress: finite(progress) };
  return null; // the others have events of their own
}

function finite(value) {
  return Number.isFinite(value) ? value : null;
}

/** Why the iteration of an answer ended without one. */
export class LockgateError extends Error {
  constructor(status) {
    super(status.message);
    this.name = "LockgateError";
    this.status = status;
  }
}

/** Ask, and hear the answer. */
export function chat(options) {
  return new LockgateStream({ key: crypto.randomUUID(), ...options });
}

/** Hear the answer to a question asked before, after a reload say, from its first word.  `ticket`: of that stream. */
export function resume({ ticket, ...options }) {
  return new LockgateStream({ ...options, ...ticket });
}

/** One answer.  Iterate it, or give `onStatus` and `onDelta`; `done` is its last status. */
export class LockgateStream {
  #options;
  #progress;
  #deltas = [];
  #heard = 0; // data events, of the record that the server keeps
  #finished = new Map(); // finish reasons, by choice
  #limit = null;
  #gone = new AbortController(); // aborted once it is over: nothing is awaited any more
  #waitedMs = 0; // between connections, since something new came
  #tries = 0;
  #stir = () => {};
  #changed;

  constructor({ key, baseUrl, body, path = "/chat/completions", ...options }) {
    this.#options = {
      token: null,
      headers: () => ({}),
      onStatus: () => {},
      onDelta: () => {},
      patienceMs: 120_000, // to wait between connections that brought nothing new, all together
      silenceMs: 45_000, // of a connection: the server says something every 10 s
      fetch: (...request) => globalThis.fetch(...request),
      sleep,
      random: Math.random,
      ...options,
    };
    this.key = key;
    this.url = baseUrl.replace(/\/+$/, "");
    // A copy: the same key must always come with the same request.
    const asked = { ...body, stream: true };
    asked.stream_options = { ...body.stream_options, x_status: true };
    this.ticket = Object.freeze({ key, path, body: structuredClone(asked) });
    this.#renew();
    this.#progress = new Progress((status) => {
      if (this.#progress.isOver) this.#gone.abort();
      this.#renew();
      this.#options.onStatus(status);
    });
    this.done = Promise.resolve().then(() => this.#run());
  }

  get status() {
    return this.#progress.status;
  }

  /** What has come of the first choice so far. */
  get text() {
    return this.#deltas.map(({ index, text }) => (index === 0 ? text : "")).join("");
  }

  /** From the first delta, whoever comes late too.  Throws LockgateError where the answer failed; leaving cancels. */
  async *[Symbol.asyncIterator]() {
    try {
      for (let at = 0; ; ) {
        while (at < this.#deltas.length) yield this.#deltas[at++];
        if (this.#progress.isOver) break;
        await this.#changed;
      }
    } finally {
      void this.cancel();
    }
    const { state, code } = this.status;
    if (state === "failed" && code !== "cancelled") throw new LockgateError(this.status);
  }

  /** Stop it, here and at the server, which gives its place to others at once.  Nothing, once it is over. */
  async cancel() {
    if (!this.#fail("cancelled", "The answer was stopped.", false)) return;
    // A closed connection alone means that somebody may come back, for whom the server would go on a while.
    const how = { keepalive: true }; // also while the page goes away
    await this.#post("/requests/cancel", { idempotency_key: this.key }, how).catch(() => {});
  }

  // How.

  async #run() {
    try {
      if (!this.#progress.isOver) this.#options.onStatus(this.status);
      while (!this.#progress.isOver) {
        const wrong = await this.#attempt();
        if (wrong !== null && !this.#progress.isOver) await this.#pause(wrong);
      }
    } catch (why) {
      this.#fail("client_error", String(why), false); // a callback of the page's threw
      throw why;
    }
    return this.status;
  }

  /** One connection.  null: the answer is over; else what was wrong, after which another may be opened. */
  async #attempt() {
    const silence = new AbortController();
    const signal = AbortSignal.any([this.#gone.signal, silence.signal]);
    let timer;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), this.#options.silenceMs);
    };
    try {
      listen();
      const how = { signal, headers: { "idempotency-key": this.key } };
      const answer = await this.#post(this.ticket.path, this.ticket.body, how);
      if (!answer.ok) return await this.#refused(answer);
      if (!/^text\/event-stream\b/.test(answer.headers.get("content-type") ?? "")) return this.#garbled();
      const again = answer.headers.get("idempotent-replayed") === "true"; // the same words from the first on
      if (!again && this.#deltas.length > 0) {
        // The server lost it and has begun anew: other words.  `resume` by the same ticket hears them.
        this.#fail("restarted", "The answer was lost and begins anew.", true, 0);
        return null;
      }
      if (!again) this.#forget();
      return await this.#hear(answer.body.getReader(), this.#heard, listen);
    } catch (why) {
      if (!(why instanceof Lost)) throw why;
      return { code: "connection_lost", message: "The connection broke off." };
    } finally {
      clearTimeout(timer);
      silence.abort();
    }
  }

  async #post(path, body, { headers = {}, ...how }) {
    const url = this.url + path;
    const { token, headers: more } = this.#options;
    const bearer = typeof token === "function" ? await token() : token;
    const sent = { "content-type": "application/json", ...headers, ...(await more("POST", url)) };
    if (bearer) sent.authorization = `Bearer ${bearer}`;
    const asked = { method: "POST", body: JSON.stringify(body), headers: sent, ...how };
    return network(this.#options.fetch(url, asked));
  }

  async #hear(reader, skip, listen) {
    const parser = new EventParser();
    for (;;) {
      const { value, done } = await network(reader.read());
      if (done) return { code: "connection_lost", message: "The answer broke off." }; // no [DONE]: no end
      listen();
      for (const { comment, data } of parser.push(value)) {
        if (skip > 0) skip -= data === undefined ? 0 : 1;
        else if (data === undefined) this.#progress.enter(statusOfComment(comment));
        else {
          const wrong = this.#event(data);
          if (wrong !== undefined || this.#progress.isOver) return wrong ?? null;
        }
      }
    }
  }

  /** Undefined to go on; else what was wrong. */
  #event(data) {
    this.#heard++;
    this.#tries = this.#waitedMs = 0;
    if (data === "[DONE]") return this.#end();
    const chunk = parsed(data);
    if (chunk === null) return this.#garbled();
    if (chunk.error) return this.#fault(chunk);
    if (chunk.x_status) this.#progress.enter(statusOf(chunk.x_status));
    if (chunk.x_limit) this.#limit = chunk.x_limit.reason;
    for (const { index, delta = {}, finish_reason } of chunk.choices ?? []) {
      if (delta.content || delta.tool_calls) this.#say({ text: delta.content ?? "", index, delta });
      if (finish_reason) this.#finished.set(index, finish_reason);
    }
    return undefined;
  }

  #forget() {
    this.#heard = 0;
    this.#finished.clear();
  }

  #say(delta) {
    this.#progress.enter({ state: "streaming" });
    this.#deltas.push(delta);
    this.#renew();
    this.#options.onDelta(delta.text, delta.index, delta.delta);
  }

  /** An error in mid-stream.  Asked again, the key may give other words: only who heard none asks by itself. */
  #fault({ error, x_status: status = {} }) {
    const { code, message } = error;
    const { retryable = false, retry_after_ms: afterMs } = status;
    if (!retryable || this.#deltas.length > 0) return void this.#fail(code, message, retryable, afterMs);
    this.#forget(); // the record that ends here is told no longer
    return { code, message, afterMs };
  }

  #end() {
    const choices = this.ticket.body.n ?? 1;
    if (this.#finished.size < choices) return void this.#fail("incomplete", "The answer has no end.", true);
    const reasons = [...this.#finished.values()];
    if (reasons.includes("length")) this.#progress.enter({ state: "limited", reason: this.#limit });
    else this.#progress.enter({ state: "complete", finishReason: reasons[0] });
  }

  async #refused(answer) {
    const { error = {} } = (await answer.json().catch(() => null)) ?? {};
    const message = error.message ?? `The server answered ${answer.status}.`;
    const afterMs = waitOf(answer.headers);
    if (error.code === "insufficient_quota") {
      this.#progress.enter({ state: "limited", reason: "token_budget" });
      return null;
    }
    const told = answer.headers.get("x-should-retry");
    const retried = RETRIED.has(answer.status) || answer.status >= 500;
    if (told === "true" || (told !== "false" && retried)) return { code: error.code, message, afterMs };
    this.#fail(error.code, message, told === "false" && afterMs !== null, afterMs); // a wait longer than ours
    return null;
  }

  /** Wait as long as was asked for, and by and by longer; not in step with everybody else. */
  async #pause({ code, message, afterMs = null }) {
    const backoffMs = Math.min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** this.#tries++);
    const waitMs = Math.max(afterMs ?? 0, backoffMs / 2) + (this.#options.random() * backoffMs) / 2;
    this.#waitedMs += waitMs;
    if (this.#waitedMs > this.#options.patienceMs) this.#fail(code, message, true, afterMs);
    else await this.#options.sleep(waitMs, this.#gone.signal);
  }

  #garbled() {
    this.#fail("not_an_event_stream", "What came is no answer of a Lockgate. Correct baseUrl.", false);
    return null;
  }

  #fail(code, message, retryable, afterMs = null) {
    return this.#progress.enter({ state: "failed", retryable, afterMs, code: code ?? null, message });
  }

  #renew() {
    this.#stir();
    this.#changed = new Promise((stir) => (this.#stir = stir));
  }
}

/** The network failed, or the stream was let go: not a fault of code. */
class Lost extends Error {}

function network(promise) {
  return Promise.resolve(promise).catch((why) => {
    throw new Lost(String(why));
  });
}

function parsed(data) {
  try {
    return Object(JSON.parse(data));
  } catch {
    return null;
  }
}

function waitOf(headers) {
  const ms = Number.parseFloat(headers.get("retry-after-ms") ?? "");
  const s = Number.parseFloat(headers.get("retry-after") ?? "");
  return finite(ms) ?? finite(s * 1000);
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
  });
}
