"""What gateways share: which tempo the house has, in memory or in the Redis of the configuration, and how it
learns what the others have changed; and what is said of both."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.settings import Settings
from policies.outage import Trouble
from tenants.epochs import LOOK_S, Epochs
from tenants.tempo import MemoryTempo, Tempo

if TYPE_CHECKING:
    from tenants.tempo.shared import SharedTempo

TEND_S: Final = 0.25
PREFIX: Final = "lockgate_tempo"


@asynccontextmanager
async def open_tempo(
    settings: Settings,
    *,
    clock_ms: Callable[[], int],
    name: Callable[[str], str],
    log: Callable[..., None],
) -> AsyncIterator[tuple[Tempo, Epochs]]:
    """`clock_ms` is monotonic; `name` is what users and keys are called in Redis.  A Redis that is not
    there refuses no start: limits are this process's part until it is."""
    state = settings.state
    if not state.redis_url:
        yield MemoryTempo(clock_ms), Epochs(clock_ms)
        return
    from tenants.tempo.bell import RedisBell
    from tenants.tempo.link import Link  # a tenth of a second, for those alone who have a Redis
    from tenants.tempo.redis import RedisTempo
    from tenants.tempo.shared import SharedTempo

    def told(trouble: Trouble | None) -> None:
        if trouble is None:
            log("tempo.restored")
        else:
            log("tempo.degraded", reason=trouble.value)

    link = Link(state.redis_url.text)
    tempo = SharedTempo(
        RedisTempo(link, name), clock_ms=clock_ms, processes=state.gateways, told=told
    )
    try:
        await tempo.begin()
        tending = asyncio.create_task(tend(tempo, log))
        try:
            yield tempo, Epochs(clock_ms, RedisBell(link, lambda: secrets.token_hex(16)))
        finally:
            tending.cancel()
            with suppress(asyncio.CancelledError):
                await tending
            await tempo.tend()  # what ended last is paid, where that can be done at once
    finally:
        await link.aclose()


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


def gauges_of(tempo: Tempo) -> Iterator[TempoGauges]:
    """None of a tempo that is in memory: it cannot fail."""
    if not isinstance(tempo, MemoryTempo):
        yield TempoGauges(cast("SharedTempo", tempo))


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
