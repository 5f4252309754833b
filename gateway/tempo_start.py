"""What gateways share: which tempo the house has, in memory or in the Redis of the configuration, and how it
learns what the others have changed; and what is said of both."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.metrics_till import TillGauges
from gateway.settings import Settings
from policies.outage import Trouble
from security.proving import REMEMBERED_S
from tenants.epochs import LOOK_S, Epochs
from tenants.tempo import MemoryTempo, Tempo
from tenants.tempo.proofs import MemoryProofs, Proofs

if TYPE_CHECKING:
    from tenants.directory import Directory
    from tenants.tempo.shared import SharedTempo
    from tenants.till.front import Front

TEND_S: Final = 0.25
PREFIX: Final = "lockgate_tempo"


class Common(NamedTuple):
    """`till`: None where budgets are decided by the book alone."""

    tempo: Tempo
    epochs: Epochs
    till: Front | None
    proofs: Proofs


@asynccontextmanager
async def open_tempo(
    settings: Settings,
    *,
    clock_ms: Callable[[], int],
    name: Callable[[str], str],
    log: Callable[..., None],
) -> AsyncIterator[Common]:
    """`clock_ms` is monotonic; `name` is what users and keys are called in Redis.  A Redis that is not
    there refuses no start: limits are this process's part until it is."""
    state = settings.state
    if not state.redis_url:
        proofs = MemoryProofs(clock_ms, REMEMBERED_S * 1000)
        yield Common(MemoryTempo(clock_ms), Epochs(clock_ms), None, proofs)
        return
    from tenants.tempo.bell import RedisBell
    from tenants.tempo.link import Link  # a tenth of a second, for those alone who have a Redis
    from tenants.tempo.proofs_redis import RedisProofs
    from tenants.tempo.redis import RedisTempo
    from tenants.tempo.shared import SharedTempo
    from tenants.till.front import Front
    from tenants.till.redis import RedisTills

    troubles: dict[str, Trouble] = {}

    def told(of: str, trouble: Trouble | None) -> None:
        """Tills are given up with rates, by whichever hears of it first, and each is told of once."""
        before = bool(troubles)
        troubles.pop(of, None)
        if trouble is not None:
            troubles[of] = trouble
        changed = [of] if of == "tempo" else []
        if till is not None and bool(troubles) is not before:
            changed.append("till")
        for each in changed:
            if trouble is None:
                log(f"{each}.restored")
            else:
                log(f"{each}.degraded", reason=trouble.value)

    till: Front | None = None
    link = Link(state.redis_url.text)
    tempo = SharedTempo(
        RedisTempo(link, name),
        clock_ms=clock_ms,
        processes=state.gateways,
        told=partial(told, "tempo"),
    )
    if others_write(settings):
        till = Front(RedisTills(link, name), clock_ms, partial(told, "till"))
    try:
        await tempo.begin()
        tending = asyncio.create_task(tend(tempo, log))
        try:
            yield Common(
                tempo,
                Epochs(clock_ms, RedisBell(link, drawn)),
                till,
                RedisProofs(link, drawn, REMEMBERED_S * 1000),
            )
        finally:
            tending.cancel()
            with suppress(asyncio.CancelledError):
                await tending
            if till is not None:
                await till.aclose()
            await tempo.tend()  # what ended last is paid, where that can be done at once
    finally:
        await link.aclose()


def drawn() -> str:
    return secrets.token_hex(16)


def others_write(settings: Settings) -> bool:
    """Whether another gateway may change what this one goes by.  A file belongs to one process."""
    return not settings.state.database_url.startswith("sqlite:")


async def follow(epochs: Epochs, log: Callable[..., None], *, every_s: float = LOOK_S) -> None:
    """For as long as the house stands.  Each way to fail is told once, until it works again."""
    failing: type[Exception] | None = None
    while True:
        await asyncio.sleep(every_s)
        try:
            await epochs.look()
            failing = None
        except Exception as why:  # noqa: BLE001 — asked again, until it is known
            if type(why) is not failing:
                log("epochs.unread", error=why)
            failing = type(why)


async def tend(tempo: SharedTempo, log: Callable[..., None], *, every_s: float = TEND_S) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await tempo.tend()
        except Exception as why:  # noqa: BLE001 — without this task it would never come back
            log("housekeeping.failed", error=why)


def tell_unused(directory: Directory, till: Front | None, log: Callable[..., None]) -> None:
    """At start: budgets that were set with a till, where there is nothing to keep one in."""
    if till is None:
        of = (directory.budgets(tenant).values() for tenant in directory.tenants())
        if count := sum(budget.till for budgets in of for budget in budgets):
            log("till.unused", reason="it needs redis_url and PostgreSQL", count=count)


def gauges_of(tempo: Tempo, till: Front | None = None) -> Iterator[Collector]:
    """None of a tempo that is in memory: it cannot fail."""
    if not isinstance(tempo, MemoryTempo):
        yield TempoGauges(cast("SharedTempo", tempo))
    if till is not None:
        yield TillGauges(till, lambda: bool(till.trouble or tempo.trouble))


class TempoGauges(Collector):
    """Read at scrape time; reasons are a closed set."""

    def __init__(self, tempo: SharedTempo) -> None:
        self._tempo = tempo

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        tempo = self._tempo
        yield GaugeMetricFamily(
            f"{PREFIX}_degraded",
            "1 while Redis is given up and limits are this process's part.",
            value=float(tempo.trouble is not None),
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_owed", "Refunds and releases that Redis has yet to hear.", value=tempo.owed
        )
        yield CounterMetricFamily(
            f"{PREFIX}_decided_alone",
            "Admissions that were decided without Redis.",
            value=tempo.decided_alone,
        )
        failures = CounterMetricFamily(
            f"{PREFIX}_failures", "Calls of Redis that failed, by why.", labels=["reason"]
        )
        for trouble in Trouble:
            failures.add_metric([trouble.value], tempo.failures[trouble])
        yield failures
