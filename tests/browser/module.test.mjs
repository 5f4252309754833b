/* The module without a server: its parser, its table, its types.  `test_module.py` runs this with Node. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { test } from "node:test";

import * as module from "../../gateway/console/static/lockgate-stream.js";
import { RECORD } from "./record.mjs";

const { chat, EventParser, LockgateError, Progress, TRANSITIONS, statusOfComment } = module;
const STATES = Object.keys(TRANSITIONS);
const encoder = new TextEncoder();

// The parser.

function parsed(pieces) {
  const parser = new EventParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

for (const [name, newline] of [["LF", "\n"], ["CRLF", "\r\n"], ["CR", "\r"]]) {
  test(`a record with ${name} reads alike wherever it is cut, with and without a BOM`, () => {
    const plain = encoder.encode(RECORD.replaceAll("\n", newline));
    const expected = parsed([encoder.encode(RECORD)]);
    assert.equal(expected.length, 9);
    for (const bytes of [plain, new Uint8Array([0xef, 0xbb, 0xbf, ...plain])]) {
      for (let at = 0; at <= bytes.length; at++) {
        assert.deepEqual(parsed([bytes.subarray(0, at), bytes.subarray(at)]), expected, `cut at ${at}`);
      }
      assert.deepEqual(parsed(Array.from(bytes, (byte) => Uint8Array.of(byte))), expected, "byte by byte");
    }
  });
}

test("fields as the standard has them", () => {
  const of = (text) => parsed([encoder.encode(text)]);
  assert.deepEqual(of("data: a\ndata:b\ndata:  c\n\n"), [{ data: "a\nb\n c" }]);
  assert.deepEqual(of("data\n\n"), [{ data: "" }]);
  assert.deepEqual(of("event: x\nid: 3\nretry: 9\n\n"), [], "without data there is no event");
  assert.deepEqual(of("database: x\ndata x\n\n"), []);
  assert.deepEqual(of(":c\n:\n\n"), [{ comment: "c" }, { comment: "" }]);
  assert.deepEqual(of("data: cut off\n"), [], "an event has a blank line behind it");
});

test("an event without end is let go", () => {
  const parser = new EventParser();
  const piece = encoder.encode("x".repeat(1 << 20));
  assert.throws(() => { for (let i = 0; i < 9; i++) parser.push(piece); });
});

test("comments that tell a status, and those that do not", () => {
  assert.deepEqual(statusOfComment("status queued 3 4000"), { state: "queued", position: 3, etaMs: 4000 });
  assert.deepEqual(statusOfComment("status queued 3"), { state: "queued", position: 3, etaMs: null });
  assert.deepEqual(statusOfComment("status preparing 0.4"), { state: "preparing", progress: 0.4 });
  for (const other of ["keep-alive", "status", "status complete", "", "OPENROUTER PROCESSING"]) {
    assert.equal(statusOfComment(other), null);
  }
});

// The table.

test("the table is API.md's", () => {
  const pairs = STATES.flatMap((from) => TRANSITIONS[from].map((to) => `${from}→${to}`)).sort();
  assert.deepEqual(pairs, [
    "preparing→failed", "preparing→streaming", "queued→failed", "queued→limited", "queued→preparing",
    "streaming→complete", "streaming→failed", "streaming→limited", "streaming→queued",
  ]);
});

test("no sequence of up to six wishes leaves the table, and an end is told once", () => {
  let sequences = 0;
  const walk = (wishes) => {
    sequences++;
    const seen = ["queued"];
    const progress = new Progress(({ state }) => seen.push(state));
    for (const state of wishes) {
      const over = progress.isOver;
      const entered = progress.enter({ state });
      assert.equal(entered && progress.status.state !== state, false, "entered is where it is");
      assert.equal(over && entered, false, "terminal once");
    }
    for (let i = 1; i < seen.length; i++) {
      const [from, to] = [seen[i - 1], seen[i]];
      const anew = from === to && TRANSITIONS[from].length > 0;
      assert.ok(anew || TRANSITIONS[from].includes(to), `${from}→${to} by ${wishes}`);
    }
    assert.ok(seen.filter((state) => TRANSITIONS[state].length === 0).length <= 1);
    if (wishes.length < 6) for (const state of STATES) walk([...wishes, state]);
  };
  walk([]);
  assert.equal(sequences, (6 ** 7 - 1) / 5);
});

test("a status cannot be changed from outside", () => {
  const progress = new Progress();
  progress.enter({ state: "preparing", progress: 0.5 });
  assert.throws(() => { progress.status.state = "complete"; });
  assert.throws(() => { TRANSITIONS.complete.push("queued"); });
  assert.throws(() => { TRANSITIONS.complete = ["queued"]; });
});

// The types.

test("the types name what the module has, and are TypeScript", () => {
  const source = readFileSync(new URL("../../gateway/console/static/lockgate-stream.d.ts", import.meta.url), "utf8");
  const left = stripTypeScriptTypes(source).replaceAll(/\/\*[^]*?\*\//g, "").replaceAll("export", "");
  assert.equal(left.trim(), "", "it declares, and does nothing");
  const stopped = chat({ baseUrl: "", body: {}, fetch: () => Promise.reject(new TypeError()) });
  void stopped.cancel();
  const values = [...source.matchAll(/^export declare (?:const|function|class) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(values.sort(), Object.keys(module).sort());
  for (const [, name, body] of source.matchAll(/^export declare class (\w+)[^{]*\{(.*?)^\}/gms)) {
    const members = [...body.matchAll(/^  (?:readonly |get )?(\w+)[(:]/gm)].map(([, member]) => member);
    const made = name === "LockgateStream" ? stopped : name === "LockgateError" ? new LockgateError({}) : new module[name]();
    for (const member of members) assert.ok(member in made, `${name}.${member}`);
    const own = Object.getOwnPropertyNames(module[name].prototype);
    for (const member of own.slice(1)) assert.ok(members.includes(member), `${name}.${member} has a type`);
  }
});
