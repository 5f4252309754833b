"""The desk with real processes and the real compiler, over a tokenizer of single bytes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any

import msgspec
import pytest

from executor.contract import Cause, Grammar, GrammarKind, Sampling
from executor.echo_card import IM_END, VOCAB_SIZE, tokenizer_json
from executor.grammar.desk import Desk
from executor.grammar.protocol import Key, News
from executor.grammar.worker_setup import Setup
from executor.settings import Settings
from tests.executor.fakes import FakeRunner, Harness, job
from tests.executor.grammar.fakes import house_with

pytestmark = pytest.mark.slow

SETUP = Setup(
    tokenizer_json=tokenizer_json(),
    vocab_size=VOCAB_SIZE,
    end_tokens=(IM_END,),
    compile_cpu_ms=300,
    burst_cpu_ms=150,
    memory_bytes=128 * 2**20,
)
WAIT_S = 30.0
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "grün"]}, "maxItems": 3},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 99}},
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def schema(given: object) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(given))


def regex(text: str) -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, text=text)


def lark(text: str) -> Grammar:
    return Grammar(kind=GrammarKind.LARK, text=text)


class Office:
    """A desk, and whoever waits for it."""

    def __init__(self, desk: Desk, heard: Event) -> None:
        self.desk = desk
        self.heard = heard
        self.order: list[News] = []
        self._numbers = iter(range(1, 10**6))

    def open(self, grammar: Grammar, user: str = "u") -> Key:
        key = (0, next(self._numbers))
        self.desk.open(key, ("t", user), grammar)
        return key

    def until(self, seen: Any) -> Any:
        give_up_s = monotonic() + WAIT_S
        while not (found := seen()):
            assert monotonic() < give_up_s, "nothing came"
            self.heard.wait(0.5)
            self.heard.clear()
        return found

    def news(self, key: Key) -> News:
        def seen() -> News | None:
            self.order += self.desk.news()
            return next((one for one in self.order if one.key == key), None)

        found = self.until(seen)
        assert isinstance(found, News)
        return found

    def allowed(self, key: Key) -> list[int]:
        mask = self.until(lambda: self.desk.mask(key))
        return [token for token in range(VOCAB_SIZE) if mask[token >> 3] >> (token & 7) & 1]

    def walk(self, grammar: Grammar, seed: int, most: int = 4000) -> str:
        """Any allowed token, each as likely: hotter than any temperature."""
        rng, said, key = Random(seed), bytearray(), self.open(grammar)
        assert self.news(key).cause is None
        for _ in range(most):
            token = rng.choice(self.allowed(key))
            if token == IM_END:
                self.desk.close(key)
                return said.decode()
            said.append(token)
            self.desk.advance(key, token)
            self.desk.news()
        raise AssertionError("it does not come to an end")

    def at_rest(self) -> None:
        """Nothing is open, and no process but the worker is left."""
        self.until(lambda: not self.desk._processes and not self.desk._lines)
        worker = self.desk._worker._process
        assert worker is not None
        self.until(lambda: not children(worker.pid))
        assert self.desk._masks == {}


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


@contextmanager
def office(setup: Setup = SETUP, **options: Any) -> Iterator[Office]:
    heard = Event()
    with Desk(setup, wake=heard.set, clock_s=monotonic, **options) as desk:
        yield Office(desk, heard)


@pytest.fixture(scope="module")
def shared() -> Iterator[Office]:
    with office() as here:
        yield here


@pytest.mark.parametrize("seed", range(6))
def test_a_random_walk_through_a_schema_is_json_of_it(shared: Office, seed: int) -> None:
    found = json.loads(shared.walk(schema(PERSON), seed))
    assert list(found)[:3] == ["name", "age", "tags"]
    assert len(found["name"]) <= 12
    assert 0 <= found["age"] <= 150
    assert set(found["tags"]) <= {"red", "grün"}
    shared.at_rest()


def test_white_space_cannot_go_on(shared: Office) -> None:
    """Nothing but white space wherever it is allowed: it is soon allowed no more."""
    key = shared.open(schema({"type": "object", "x-guidance": {"whitespace_flexible": True}}))
    assert shared.news(key).cause is None
    shared.desk.advance(key, ord("{"))
    count = 0
    while count < 100:
        shared.desk.news()
        spaces = [token for token in shared.allowed(key) if chr(token) in " \n\t\r"]
        if not spaces:
            break
        shared.desk.advance(key, max(spaces, key=lambda token: token == ord("\n")))
        count += 1
    assert 1 < count <= 17
    shared.desk.close(key)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    (
        (regex(r"^\d{3}-[a-f]{1,4}$"), r"[0-9]{3}-[a-f]{1,4}"),
        (regex("a/b|(c|d){2}"), "a/b|[cd]{2}"),
        (lark('start: "ja" | "nein" ("!" | "?"){1,3}'), "ja|nein[!?]{1,3}"),
        (Grammar(kind=GrammarKind.CHOICE, text='["a\\"b","ü\\n"]'), 'a"b|ü\n'),
        (schema({"enum": ["x", 5, None, {"a": [1]}]}), r'"x"|5|null|\{"a": ?\[1\]\}|.*'),
    ),
)
def test_other_kinds(shared: Office, grammar: Grammar, pattern: str) -> None:
    for seed in range(4):
        said = shared.walk(grammar, seed)
        assert re.fullmatch(pattern, said, re.DOTALL | re.ASCII), said


def test_after_the_end_only_end_tokens(shared: Office) -> None:
    key = shared.open(regex("a"))
    assert shared.allowed(key) == [ord("a")]
    shared.desk.advance(key, ord("a"))
    shared.desk.news()
    assert shared.allowed(key) == [IM_END]
    shared.desk.close(key)


@pytest.mark.parametrize(
    ("grammar", "says"),
    (
        (schema({"type": "hiccup"}), "hiccup"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"not": {}}), "not"),
        (schema({"if": {}, "then": {}}), "if"),
        (schema({"type": "string", "format": "hiccup"}), "hiccup"),
        (schema({"$ref": "https://elsewhere.example/s.json"}), "nothing is ever fetched"),
        (schema({"$ref": "file:///etc/passwd"}), "nothing is ever fetched"),
        (schema({"$ref": "#/$defs/none"}), "does not exist"),
        (schema({"$ref": "#"}), "no answer"),
        (schema({"type": "string", "minLength": 2, "maxLength": 1}), "Unsatisfiable"),
        (schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (schema({"type": "object", "properties": []}), "properties"),
        (regex("["), "unclosed"),
        (regex("(?<=a)b"), "look-around"),
        (lark("begin: /a/"), "start"),
        (lark("start: missing"), "missing"),
        (lark("start: <|nobody|>"), "nobody"),
        (Grammar(kind=GrammarKind.CHOICE, text="[]"), "not empty"),
        (Grammar(kind=GrammarKind.JSON_SCHEMA, text="[" * 50_000), "JSON object"),
        (regex("(" * 40_000), ""),
        (lark("start: " + "(" * 40_000), ""),
    ),
)
def test_what_cannot_be_compiled_says_why_in_one_line(
    shared: Office, grammar: Grammar, says: str
) -> None:
    told = shared.news(shared.open(grammar))
    assert told.cause is Cause.GRAMMAR
    assert says in told.detail
    assert 0 < len(told.detail) <= 240
    assert told.detail.isprintable()
    shared.at_rest()


def doubling(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"anyOf": [found, {"type": "object", "properties": {"x": found}}]}
    return found


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"a": found}, "required": ["a"]}
    return found


BOMBS = {
    "depth": schema(deep(300)),
    "a huge enum": schema({"enum": [f"{i:x}" for i in range(10_000)]}),
    "doubling anyOf": schema(doubling(10)),
    "anyOf in allOf": schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"{i}.{j}": {"type": "string"}}} for j in range(4)]}
                for i in range(12)
            ]
        }
    ),
    "repetition": schema({"type": "string", "pattern": "^(a{0,1000}b{0,1000}){0,100}$"}),
    "long repetition": schema({"type": "string", "pattern": "^a{0,100000}$"}),
    "many items": schema(
        {"type": "array", "items": {"type": "string", "maxLength": 999}, "minItems": 5000}
    ),
    "many properties": schema(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}
    ),
    "a multiple": schema(
        {"type": "integer", "multipleOf": 999983, "minimum": 10**15, "maximum": 10**18}
    ),
    "recursion": schema(
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}},
        }
    ),
    "a circle": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "a circle of anyOf": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 3}}}
    ),
    "backtracking": regex(r"(x+x+)+y"),
    "many states": regex(r".*[ab].{60}.*[cd].{60}.*"),
    "repetition of repetition": regex(r"((a{0,1000}){0,1000}){0,1000}"),
    "ambiguity": lark('start: a a a a a a a\na: "x" a | a "x" | "x" | "" | a a'),
    "left recursion": lark('start: start start start | "a" | ""'),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_harmless_and_hurts_nobody(shared: Office, name: str) -> None:
    """Refused by the compiler, or by its own limits, at once or as soon as it is walked into.  The
    worker, and a neighbour in the middle of an answer, do not notice."""
    neighbour = shared.open(regex("n{50}"))
    assert shared.news(neighbour).cause is None
    worker = shared.desk._worker._process
    key = shared.open(BOMBS[name])
    told = shared.news(key)
    rng, walking = Random(name), told.cause is None
    for _ in range(50):
        assert shared.allowed(neighbour) == [ord("n")]
        shared.desk.advance(neighbour, ord("n"))
        if walking:
            token = IM_END
            if shared.until(lambda: shared.desk.mask(key) or gone(shared, key)) is not True:
                token = rng.choice(shared.allowed(key))
                shared.desk.advance(key, token)
            walking = token != IM_END
        shared.desk.news()
    assert told.cause in {None, Cause.GRAMMAR, Cause.GRAMMAR_BUDGET}
    assert shared.allowed(neighbour) == [IM_END]
    shared.desk.close(neighbour)
    shared.desk.close(key)
    shared.at_rest()
    assert shared.desk._worker._process is worker


def gone(here: Office, key: Key) -> bool:
    here.order += here.desk.news()
    return any(one.key == key and one.cause is not None for one in here.order)


def test_time_over_budget_ends_it_while_it_compiles() -> None:
    with office(msgspec.structs.replace(SETUP, compile_cpu_ms=20)) as here:
        told = here.news(here.open(BOMBS["many properties"]))
        assert told.cause is Cause.GRAMMAR_BUDGET
        assert told.detail.startswith("compiling it")
        assert here.news(here.open(regex("a"))).cause is None


def test_memory_over_budget_ends_it() -> None:
    with office(msgspec.structs.replace(SETUP, memory_bytes=2**21, compile_cpu_ms=9000)) as here:
        told = here.news(here.open(BOMBS["many properties"]))
        assert told.cause is Cause.GRAMMAR_BUDGET
        assert here.news(here.open(regex("a"))).cause is None


def test_masks_over_budget_end_it_in_the_middle() -> None:
    """Each is affordable, all of them are not: what is saved up runs out."""
    with office(msgspec.structs.replace(SETUP, mask_cpu_ms=0, burst_cpu_ms=12)) as here:
        key = here.open(BOMBS["ambiguity"])
        assert here.news(key).cause is None
        here.order.clear()
        for _ in range(500):
            found = here.until(lambda: here.desk.mask(key) or gone(here, key))
            if found is True:
                break
            here.desk.advance(key, ord("x"))
            here.desk.news()
        (told,) = [one for one in here.order if one.key == key]
        assert told.cause is not None
        here.desk.close(key)
        here.at_rest()


def test_an_abort_while_it_compiles_leaves_nothing() -> None:
    with office(msgspec.structs.replace(SETUP, compile_cpu_ms=2000)) as here:
        keys = [here.open(BOMBS["many properties"]) for _ in range(6)]  # one compiles, five wait
        here.until(lambda: here.desk._processes)
        for key in keys:
            here.desk.close(key)
        here.at_rest()
        assert here.desk.news() == []


def test_users_take_turns() -> None:
    with office(compiling_max=1) as here:
        many = [here.open(regex("a"), "many") for _ in range(5)]
        one = here.open(regex("b"), "one")
        here.news(many[-1])
        order = [told.key for told in here.order]
        assert order.index(one) <= 2
        assert [key for key in order if key != one] == many


def test_a_bomb_keeps_its_own_user_waiting_and_nobody_else() -> None:
    with office(msgspec.structs.replace(SETUP, compile_cpu_ms=5000, wall_ms=20_000)) as here:
        bomb = here.open(BOMBS["many properties"], "hostile")
        behind = here.open(regex("a"), "hostile")
        here.until(lambda: here.desk._processes)
        assert here.news(here.open(regex("b"), "one")).cause is None
        assert here.news(here.open(regex("b"), "two")).cause is None
        assert bomb in here.desk._processes
        assert behind not in here.desk._processes
        here.desk.close(bomb)
        assert here.news(behind).cause is None


def test_a_worker_that_dies_is_replaced_and_its_processes_live_on() -> None:
    with office() as here:
        old = here.open(regex("ab"))
        assert here.news(old).cause is None
        first = here.desk._worker._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        assert here.news(here.open(regex("c"))).cause is None
        assert here.desk._worker._process is not first
        here.desk.advance(old, ord("a"))
        here.desk.news()
        assert here.allowed(old) == [ord("b")]


def test_a_tokenizer_that_is_none_is_said_once_and_for_all() -> None:
    with office(msgspec.structs.replace(SETUP, tokenizer_json=b"{}")) as here:
        for _ in range(2):
            told = here.news(here.open(regex("a")))
            assert told.cause is Cause.GRAMMAR
            assert "tokenizer" in told.detail
    with office(msgspec.structs.replace(SETUP, end_tokens=())) as here:
        assert "ends an answer" in here.news(here.open(regex("a"))).detail


def test_when_the_desk_closes_every_process_ends() -> None:
    with office() as here:
        assert here.news(here.open(regex("a"))).cause is None
        worker = here.desk._worker._process
        assert worker is not None
        (child,) = children(worker.pid)
    assert worker.poll() is not None
    give_up_s = monotonic() + WAIT_S
    while Path(f"/proc/{child}").exists():
        assert monotonic() < give_up_s


def test_in_little_memory_each_answer_is_valid_and_what_it_is_alone() -> None:
    """The whole engine over real masks: six in memory for two, preempted again and again."""
    jobs = [
        job(
            n,
            [n, 7, 9],
            grammar=schema(PERSON),
            max_new_tokens=400,
            stop_token_ids=(IM_END,),
            sampling=Sampling(temperature=1.2, seed=n),
        )
        for n in range(1, 7)
    ]

    def play(house: Harness, wanted: int, here: Office) -> None:
        give_up_s = monotonic() + WAIT_S
        while sum(said.cause is not None for said in lasts(house)) < wanted:
            assert monotonic() < give_up_s
            house.step()
            here.desk._poke_thread()
            # all in step, or those that came first would be gone before the others need memory
            here.until(lambda: all(map(here.desk.mask, house.engine._seqs)))

    def runner() -> FakeRunner:
        return FakeRunner(block_tokens=8, kv_blocks=24, vocab_size=VOCAB_SIZE, context_tokens=450)

    with office() as here:
        solo = []
        for one in jobs:
            house = house_with(here.desk, runner(), Settings(check_invariants=True))
            house.submit(one, owner=one.request)
            play(house, 1, here)
            solo.append(house.tokens(one.request, one.request))
        house = house_with(here.desk, runner(), Settings(check_invariants=True))
        for one in jobs:
            house.submit(msgspec.structs.replace(one), owner=100 + one.request)
        play(house, len(jobs), here)
        company = [house.tokens(one.request, 100 + one.request) for one in jobs]
        assert company == solo
        assert house.engine.gauges.preemptions > 0
        for tokens in company:
            assert tokens[-1] == IM_END
            json.loads(bytes(tokens[:-1]).decode())
        here.at_rest()


def lasts(house: Harness) -> list[Any]:
    return [said[-1] for said in house.heard.values() if hasattr(said[-1], "cause")]
