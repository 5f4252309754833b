"""`python -m tests.bench.grammar [MODEL]`: what constraining answers costs.

Prints the time from a grammar to its first mask, the time a mask takes and what of it the engine's
thread spends, and the step time of rows with a grammar against the same rows without.  The engine runs
in this process, with the real model and real grammar processes.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Event
from time import monotonic, monotonic_ns, perf_counter_ns

from executor.contract import Emitted, Ended, Grammar, GrammarKind, ModelCard, Sampling, Submit
from executor.engine import Engine
from executor.grammar.desk import Desk
from executor.grammar.protocol import Key, News, User
from executor.grammar.worker_setup import setup_of
from executor.model_runner import load
from executor.settings import Settings
from tests.bench.machine import this_machine
from tests.models import default_model_path

STEPS = 120
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "notes": {"type": "array", "items": {"type": "string"}, "minItems": 400},
        "colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["name", "age", "notes", "colour"],
    "additionalProperties": False,
}
SCHEMA = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(PERSON))


BOMB = Grammar(
    kind=GrammarKind.JSON_SCHEMA,
    text=json.dumps(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}}
    ),
)


class Timed:
    """A desk whose calls by the engine's thread are timed.  With `bombs`, so many users always have
    one compiling."""

    def __init__(self, desk: Desk, bombs: int = 0) -> None:
        self._desk = desk
        self._bombs = {(-1 - n, 0): n for n in range(bombs)}
        self.exploded = 0
        for key, n in self._bombs.items():
            desk.open(key, (f"hostile{n}", "u"), BOMB)
        self.calls_ns = 0
        self.waits = 0
        self.calls = 0

    def _timed(self, call: Callable[[], object]) -> object:
        begin_ns = perf_counter_ns()
        found = call()
        self.calls_ns += perf_counter_ns() - begin_ns
        return found

    def open(self, key: Key, user: User, grammar: Grammar) -> None:
        self._desk.open(key, user, grammar)

    def news(self) -> list[News]:
        found: list[News] = self._timed(self._desk.news)  # type: ignore[assignment]  # as it was
        for told in found:
            if (n := self._bombs.pop(told.key, None)) is not None:
                again = (told.key[0], told.key[1] + 1)
                self._bombs[again] = n
                self._desk.close(told.key)
                self._desk.open(again, (f"hostile{n}", "u"), BOMB)
                self.exploded += 1
        return found

    def stop(self) -> None:
        for key in self._bombs:
            self._desk.close(key)

    def mask(self, key: Key) -> bytes | None:
        found = self._timed(lambda: self._desk.mask(key))
        self.calls += 1
        self.waits += found is None
        return found  # type: ignore[return-value]  # as it was

    def advance(self, key: Key, token: int) -> None:
        self._timed(lambda: self._desk.advance(key, token))

    def close(self, key: Key) -> None:
        self._desk.close(key)


def first_masks(desk: Desk, heard: Event) -> None:
    """From `open` to the first mask, one after another: fork, compile, mask."""
    for name, grammar in {
        "json_object": Grammar(kind=GrammarKind.JSON_OBJECT),
        "a schema of four properties": SCHEMA,
        "an enum of 3,000": Grammar(
            kind=GrammarKind.JSON_SCHEMA,
            text=json.dumps({"enum": [f"value number {i}" for i in range(3000)]}),
        ),
        "a regular expression": Grammar(kind=GrammarKind.REGEX, text=r"[a-z]+@[a-z]+\.com"),
    }.items():
        took_ms = []
        for n in range(10):
            key = (len(name), n)
            begin_ns = perf_counter_ns()
            desk.open(key, ("bench",), grammar)
            while desk.mask(key) is None:
                heard.wait(1)
                heard.clear()
            took_ms.append((perf_counter_ns() - begin_ns) / 1e6)
            desk.close(key)
        print(f"  {name:30} {median(took_ms):6.1f} ms, at most {max(took_ms):.1f} ms")


def steps_ms(
    card: ModelCard, engine: Engine, inbox: deque[tuple[int, Submit]], rows: list[Grammar | None]
) -> list[float]:
    """Decode steps with all of `rows` running."""
    prompt = tuple(range(40, 168))
    for n, grammar in enumerate(rows):
        inbox.append(
            (
                0,
                Submit(
                    request=perf_counter_ns() + n,
                    prompt=(*prompt, n + 5),
                    max_new_tokens=400,
                    stop_token_ids=card.eos_token_ids if grammar is not None else (),
                    sampling=Sampling(temperature=0.8, seed=n, top_p=0.95),
                    grammar=grammar,
                ),
            )
        )
    found: list[float] = []
    while len(found) < STEPS:
        begin_ns = perf_counter_ns()
        reports = engine.step()
        took_ms = (perf_counter_ns() - begin_ns) / 1e6
        said = [u for report in reports.values() for u in report.updates]
        assert not any(isinstance(u, Ended) for u in said), said
        if sum(isinstance(u, Emitted) for u in said) == len(rows):
            found.append(took_ms)
    return found


def main(arguments: list[str]) -> None:
    path = Path(arguments[0]) if arguments else default_model_path()
    print(this_machine(Path(__file__).parents[2]).sentence())
    card, runner = load(path)
    heard = Event()
    with Desk(setup_of(card), wake=heard.set, clock_s=monotonic) as desk:
        print("from a grammar to its first mask")
        first_masks(desk, heard)
        free: list[Grammar | None] = [None] * 8
        bound: list[Grammar | None] = [SCHEMA] * 8
        loads = (
            ("8 plain rows", free, 0),
            ("8 rows of a schema", bound, 0),
            ("8 plain rows, 2 bombs", free, 2),
        )
        for name, rows, bombs in loads * 4:
            timed = Timed(desk, bombs)
            inbox: deque[tuple[int, Submit]] = deque()

            def take(inbox: deque[tuple[int, Submit]] = inbox) -> list[tuple[int, Submit]]:
                return [inbox.popleft() for _ in range(len(inbox))]

            engine = Engine(
                runner, take, clock_ns=monotonic_ns, settings=Settings(), grammars=timed
            )
            took = steps_ms(card, engine, inbox, rows)
            print(
                f"  {name:22} step {median(took):6.2f} ms, p99 {sorted(took)[-2]:6.2f} ms;"
                f" in the engine's thread {timed.calls_ns / STEPS / 1e3:5.0f} us a step;"
                f" {timed.waits} of {timed.calls} masks late; {timed.exploded} bombs refused"
            )
            for seq in list(engine._seqs.values()):
                timed.close(seq.key)
            timed.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
