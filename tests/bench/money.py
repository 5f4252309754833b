"""What an admission costs: rates and seats in tempo, then the hold in the book, durable.

A closed loop of `in_flight` callers says how many a second there are at most; an open loop at a fixed rate
says how much later a request is for it, counted from the moment at which it was due.  Budgets of user,
project and tenant stand above each, all too large to refuse.  Afterwards everything is settled, and the
windows and the ledger are compared with what was asked.
Refuses to know: how the stores are started (money_command).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.facts import Budget, Limits, Meters, Price
from policies.verdict import Allow
from tenants.asks import HoldAsk
from tenants.book import Book
from tenants.scopes import BudgetAccount, Dimensions, ScopeLimits, scope_id
from tenants.tempo import Tempo, TempoAsk
from tests.bench.figures import percentile

PRICE = Price("m@0", "m", 0, 200_000_000, 50_000_000, 200_000_000, 600_000_000)
PEOPLE = 64
SCOPES = ("user", "project", "tenant")
_LIMITS = Limits(rpm=10**9, input_tpm=10**12, output_tpm=10**12, concurrent=10**6)
_INPUT, _OUTPUT, _USED = 100, 50, 20


@dataclass(frozen=True, slots=True)
class Shape:
    admissions: int = 6_000
    in_flight: int = 64
    per_s: float = 100.0
    seconds: float = 10.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """`cpu_ms` of this process, an admission; the database's own is not in it."""

    per_s: float
    cpu_ms: float
    full_p50_ms: float
    full_p99_ms: float
    whole_per_s: float
    p50_ms: float
    p99_ms: float
    faults: tuple[str, ...] = ()


class Load:
    """One round's requests at one store."""

    def __init__(self, book: Book, tempo: Tempo, number: int) -> None:
        self._book, self._tempo, self._number = book, tempo, number
        self._people = [_person(at) for at in range(PEOPLE)]
        self.open: list[str] = []

    async def admit(self, at: int) -> float:
        """Milliseconds that it took."""
        dims, budgets, scopes = self._people[at % PEOPLE]
        request_id = f"{self._number}-{at}"
        begun_s = time.perf_counter()
        rate = await self._tempo.admit(TempoAsk(request_id, "acme", scopes, _INPUT, _OUTPUT))
        assert isinstance(rate, Allow)
        held = await self._book.hold(
            HoldAsk(
                request_id=request_id,
                dims=dims,
                budgets=budgets,
                price=PRICE,
                prompt_tokens=_INPUT,
                output_tokens=_OUTPUT,
                output_tokens_least=_OUTPUT,
            )
        )
        took_ms = (time.perf_counter() - begun_s) * 1000
        assert isinstance(held, Allow)
        self.open.append(request_id)
        return took_ms

    async def end(self, request_id: str) -> None:
        await self._book.settle(request_id, Meters(input=_INPUT, output=_USED))
        await self._tempo.release(request_id, _USED)

    async def spent(self) -> tuple[int, int, int]:
        """Spent and held of the tenant's budget, and the ledger's own total."""
        _, budgets, _ = self._people[0]
        (balance,) = await self._book.balances([budgets[-1]])
        ledger = await self._book.spend(from_ms=0, to_ms=2**52)
        return balance.spent_nano_usd, balance.held_nano_usd, ledger


def _person(at: int) -> tuple[Dimensions, tuple[BudgetAccount, ...], tuple[ScopeLimits, ...]]:
    dims = Dimensions("acme", "search", f"user{at}", "idp", None, "m", "interactive")
    ids = [(scope, scope_id(scope, dims) or "") for scope in SCOPES]
    budgets = tuple(BudgetAccount(scope, each, Budget(10**17)) for scope, each in ids)
    return dims, budgets, tuple(ScopeLimits(scope, each, _LIMITS) for scope, each in ids)


async def one_round(book: Book, tempo: Tempo, shape: Shape, number: int) -> Round:
    load = Load(book, tempo, number)
    spent_before, _, _ = await load.spent()
    for at in range(PEOPLE):  # windows are opened and statements prepared
        await load.admit(-1 - at)
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    took_ms = await _closed(load, range(shape.admissions), shape.in_flight)
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    begun_s = time.perf_counter()
    await _settled(load, shape.in_flight)
    whole_s = wall_s + time.perf_counter() - begun_s
    late_ms = await _open(load, shape)
    await _settled(load, shape.in_flight)
    asked = PEOPLE + shape.admissions + len(late_ms)
    cost = (_INPUT * PRICE.input + _USED * PRICE.output) // 1_000_000
    spent, held, ledger = await load.spent()
    faults = []
    if spent - spent_before != asked * cost or held or ledger != spent:
        faults.append(
            f"{asked} admissions of {cost}: the window says {spent - spent_before} and holds {held}, "
            f"the ledger {ledger} of {spent}"
        )
    if tempo.leases:
        faults.append(f"{tempo.leases} leases are left")
    return Round(
        per_s=shape.admissions / wall_s,
        cpu_ms=cpu_s * 1000 / shape.admissions,
        full_p50_ms=percentile(took_ms, 50) or 0.0,
        full_p99_ms=percentile(took_ms, 99) or 0.0,
        whole_per_s=shape.admissions / whole_s,
        p50_ms=percentile(late_ms, 50) or 0.0,
        p99_ms=percentile(late_ms, 99) or 0.0,
        faults=tuple(faults),
    )


async def _closed(load: Load, numbers: range, in_flight: int) -> list[float]:
    took_ms: list[float] = []
    following = iter(numbers)

    async def caller() -> None:
        for at in following:
            took_ms.append(await load.admit(at))  # noqa: PERF401 — several append to one list

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return took_ms


async def _open(load: Load, shape: Shape) -> list[float]:
    """Poisson arrivals; whoever is late was due all the same."""
    dice, due_s = random.Random(shape.seed), 0.0
    begun_s = time.perf_counter()
    running: list[asyncio.Task[float]] = []

    async def one(at: int, due_s: float) -> float:
        late_ms = (time.perf_counter() - begun_s - due_s) * 1000
        return late_ms + await load.admit(at)

    at = shape.admissions
    while (due_s := due_s + dice.expovariate(shape.per_s)) < shape.seconds:
        await asyncio.sleep(max(0.0, begun_s + due_s - time.perf_counter()))
        running.append(asyncio.create_task(one(at, due_s)))
        at += 1
    return list(await asyncio.gather(*running))


async def _settled(load: Load, in_flight: int) -> None:
    async def caller() -> None:
        while load.open:
            await load.end(load.open.pop())

    await asyncio.gather(*(caller() for _ in range(in_flight)))


def middle(rounds: Sequence[Round]) -> Round:
    def of(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in rounds))

    names = ("per_s", "cpu_ms", "full_p50_ms", "full_p99_ms", "whole_per_s", "p50_ms", "p99_ms")
    faults = tuple(fault for each in rounds for fault in each.faults)
    return replace(rounds[0], **{name: of(name) for name in names}, faults=faults)
