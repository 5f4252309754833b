"""The exact companion of the timing audit: an engine under a virtual clock that only computing moves.

A play says who asks when, and how much; a world says with which tokens the victims fill it.  Whatever the
world, everything that the attacker hears (what, in which order, at which instant, with which counts) must be the
same, byte for byte: no statistics.  The brokenness that it must see is here, too: nothing that ships can be
told to be so (DESIGN.md, 16).  Source: SECURITY.md §1 (P3), §3.8; ENGINE.md §1 for the shape of the cost.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from executor.batch import Batch
from executor.contract import Command, Submit
from executor.engine import Engine
from executor.inbox import Gone
from executor.scheduler.protocol import Scheduler
from executor.sequence import Sequence as Seq
from executor.settings import Settings
from tests.executor.fakes import COMPUTES, FakeRunner, job

STEP_NS: Final = 2_000_000
TOKEN_NS: Final = 100_000
TOKEN_CONTEXT_NS: Final = 700
CONTEXT_TOKENS: Final = 160
VOCABULARY: Final = 32
STEPS_MAX: Final = 20_000
OWNER: Final = 0
"""One gateway, one connection, for all tenants."""

ATTACKER: Final = "acme/eve"
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Arrival:
    """`who`: tenant/user.  `prompt`: the attacker's own words; None: the world's.  `shape`: of the prompt."""

    request: int
    at_ns: int
    who: str
    shape: int
    max_new_tokens: int
    prompt: Tokens | None = None

    @property
    def tenant(self) -> str:
        return self.who.partition("/")[0]


World = Callable[[Arrival], Tokens]
"""What a victim says: `arrival.shape` tokens."""
Play = Sequence[Arrival]
Dress = Callable[[Submit, Arrival], Submit]
"""Gives a request what a gateway would add: labels."""


@dataclass
class VirtualClock:
    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


class Cost:
    """What a batch takes: of its shape alone."""

    def __call__(self, batch: Batch) -> int:
        return STEP_NS + sum(self.of_row(row.start, row.tokens) for row in batch.rows)

    def of_row(self, start: int, tokens: Sequence[int]) -> int:
        return len(tokens) * TOKEN_NS + sum(
            (start + at) * TOKEN_CONTEXT_NS for at in range(len(tokens))
        )


@dataclass
class Stage:
    """One engine to play on.  `first`: commands before the play begins."""

    settings: Settings = field(
        default_factory=lambda: Settings(
            check_invariants=True, speculation=False, step_ms_max=8, chunk_tokens_min=8
        )
    )
    scheduler: Scheduler[Seq] | None = None
    cost: Cost = field(default_factory=Cost)
    dress: Dress = lambda submit, _: submit
    first: Sequence[Command] = ()
    kv_blocks: int = 128
    habits: float = 0.0

    def trace(self, play: Play, world: World) -> bytes:
        """All that the attacker hears."""
        clock, inbox = VirtualClock(), deque[tuple[int, Command | Gone]]()
        runner = FakeRunner(
            block_tokens=4,
            kv_blocks=self.kv_blocks,
            context_tokens=CONTEXT_TOKENS,
            vocab_size=VOCABULARY,
            habits=self.habits,
        )

        def before(batch: Batch) -> None:
            clock.now_ns += self.cost(batch)

        def take() -> list[tuple[int, Command | Gone]]:
            taken = list(inbox)
            inbox.clear()
            return taken

        runner.before = before
        own = self.scheduler
        engine = Engine(
            runner,
            take,
            clock_ns=clock,
            settings=self.settings,
            policy=None if own is None else lambda _: own,
            computes=COMPUTES,
        )
        inbox.extend((OWNER, command) for command in self.first)
        to_come = deque(sorted(play, key=lambda each: each.at_ns))
        hears = {each.request for each in play if each.who == ATTACKER}
        heard: list[bytes] = []
        for _ in range(STEPS_MAX):
            while to_come and to_come[0].at_ns <= clock.now_ns:
                inbox.append((OWNER, self._submit(to_come.popleft(), world)))
            if not inbox and not engine.busy:
                wakes = [at for at in (engine.wake_ns,) if at is not None and at > clock.now_ns]
                wakes += [to_come[0].at_ns] if to_come else []
                if not wakes:
                    break
                clock.now_ns = min(wakes)
                continue
            for report in engine.step().values():
                heard += [
                    b"%d %s" % (clock.now_ns, msgspec.json.encode(update))
                    for update in report.updates
                    if update.request in hears
                ]
        else:
            raise AssertionError("it does not come to an end")
        assert sum(b'"ended"' in line for line in heard) == len(hears)
        return b"\n".join(heard)

    def _submit(self, arrival: Arrival, world: World) -> Submit:
        prompt = world(arrival) if arrival.prompt is None else arrival.prompt
        assert len(prompt) == arrival.shape, "a world changes the content, never the shape"
        plain = job(
            arrival.request,
            prompt,
            max_new_tokens=arrival.max_new_tokens,
            share=((arrival.tenant, 1.0), (arrival.who, 1.0)),
        )
        return self.dress(plain, arrival)


def random_world(seed: int) -> World:
    return lambda each: tuple(
        random.Random(f"{seed}/{each.request}").choices(range(VOCABULARY), k=each.shape)
    )


def echoing(words: Tokens) -> World:
    """Every victim says what the attacker will say, as far as its shape goes."""
    return lambda each: (words * (each.shape // len(words) + 1))[: each.shape]


def saying_once(words: Tokens, play: Play, seed: int) -> World:
    """Each victim says `words` in its longest request and is random in the others: so what it reuses of its
    own is that of a random world, nothing.  (That a victim repeats itself saves time, which others feel as
    less load: with a cache that belongs to the shape.)"""
    victims = sorted((each for each in play if each.prompt is None), key=lambda each: each.shape)
    said = set({each.who: each.request for each in victims}.values())
    echo, other = echoing(words), random_world(seed)
    return lambda each: echo(each) if each.request in said else other(each)


def monotone(each: Arrival) -> Tokens:
    return (7,) * each.shape


def play_of(seed: int, secret: Tokens, *, victims: Sequence[str]) -> Play:
    """Victims come and go; the attacker asks for `secret` now and then, among questions of its own."""
    rng = random.Random(seed)
    arrivals = []
    for request in range(1, 25):
        if rng.random() < 0.4:
            own = tuple(rng.choices(range(VOCABULARY), k=rng.randint(4, 40)))
            prompt = secret + own[:6] if rng.random() < 0.6 else own
            who, shape = ATTACKER, len(prompt)
        else:
            prompt, who, shape = None, rng.choice(victims), rng.randint(4, 60)
        arrivals.append(
            Arrival(request, rng.randrange(120_000_000), who, shape, rng.randint(1, 12), prompt)
        )
    return arrivals


def candidates_of(dummies: Sequence[Tokens], victim: str) -> Play:
    """The victim's one request, then all candidates at one instant: in which order do they end?"""
    secret = Arrival(1, 0, victim, len(dummies[0]), 4)
    asked = [
        Arrival(2 + at, 200_000_000, ATTACKER, len(each), 1, each)
        for at, each in enumerate(dummies)
    ]
    return [secret, *asked]


def ends(trace: bytes) -> list[int]:
    """Numbers of the requests, in the order in which they ended."""
    lines = [line.partition(b" ")[2] for line in trace.splitlines() if b'"ended"' in line]
    return [msgspec.json.decode(line)["request"] for line in lines]


# ── What must be caught ─────────────────────────────────────────────────────────────────────────────


class SharedCache(Cost):
    """Saves what anybody has computed before: a cache without labels."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, Tokens]] = set()

    def of_row(self, start: int, tokens: Sequence[int]) -> int:
        key = (start, tuple(tokens))
        if len(tokens) > 1 and key in self._seen:
            return 0
        self._seen.add(key)
        return super().of_row(start, tokens)


class ByContent(Cost):
    """A kernel that is faster for some numbers than for others."""

    def of_row(self, start: int, tokens: Sequence[int]) -> int:
        return super().of_row(start, tokens) + 1000 * sum(tokens)


def traces(stage: Callable[[], Stage], play: Play, worlds: Iterable[World]) -> set[bytes]:
    """One, if nothing of the victims' content gets through.  Every world has an engine of its own.  Compare
    numbers of them: what an assertion would show of the traces themselves takes minutes to write."""
    return {stage().trace(play, world) for world in worlds}
