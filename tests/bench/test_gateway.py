"""The gateway's bench: slow answers are seen, nothing that should have been sent is left out, and a book
that disagrees is found.  Where time matters it is a loop's whose clock only waiting moves."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import gateway
from tests.bench.arrivals import GRACE_S, Job, Load, Seen, arrivals
from tests.bench.disk import durable_ms
from tests.bench.fake import Fake, Flaws, running
from tests.bench.fake_executor import Pace
from tests.bench.fake_upstream import Connection
from tests.bench.figures import percentile
from tests.bench.gateway import Ask, Bar, Disk, Full, Rate, Round, Subject, bars, one_round, summary
from tests.bench.gateway_command import faults_of, lines
from tests.bench.gateway_subjects import OURS, WHOLE, ours
from tests.bench.load import Shape as Completion
from tests.bench.load import body

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

CHAT = WHOLE.body("fake")
DISK = Disk(one_p50=0.5, one_p99=1.0, line_p50=1.5, line_p99=3.0)


class VirtualTime(selectors.SelectSelector):
    """Waiting for a time takes none: it is that time then.  What loopback brings is there at once."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self._late_s = late_s

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self.now_s += timeout + self._late_s
        return found or super().select(0 if timeout is not None else 1)


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, Seen]], late_s: float) -> Seen:
    clock = VirtualTime(late_s)
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now_s  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


def seen_of(server: Callable[[], asyncio.Protocol], *, late_s: float = 0.0, **how: Any) -> Seen:
    async def go() -> Seen:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        try:
            return await Load(job(port=port, **how)).run()
        finally:
            listening.close()
            for _ in range(5):
                await asyncio.sleep(0)  # its ends of the connections hear that they are lost

    return in_virtual_time(go, late_s)


def test_a_slow_answer_is_in_every_percentile_and_its_constant_part_is_taken_off() -> None:
    seen = seen_of(lambda: Connection(Pace(1, 20.0)), seconds=2, rate_per_s=50)
    assert seen.failed == 0
    assert seen.requests == sum(1 for _ in arrivals(job(seconds=2, rate_per_s=50)))
    assert percentile(seen.took_ms, 50) == pytest.approx(20, abs=1)
    assert gateway.rate_of(50, seen, 0.0, 20.0).p99_ms == pytest.approx(0, abs=1)


class Stalled(Connection):
    """Answers at once, but nothing between `from_s` and `to_s`."""

    def __init__(self, from_s: float, to_s: float) -> None:
        super().__init__(Pace())
        self._from_s, self._to_s = from_s, to_s

    def data_received(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self._from_s <= loop.time() < self._to_s:
            loop.call_at(self._to_s, super().data_received, data)
        else:
            super().data_received(data)


def test_who_should_have_come_during_a_stall_has_waited_for_its_end() -> None:
    job_ = job(seconds=2, rate_per_s=100)
    meanwhile = [at_s for at_s in arrivals(job_) if 0.5 <= at_s < 1.0]
    seen = seen_of(lambda: Stalled(0.5, 1.0), seconds=2, rate_per_s=100)
    waited = sorted(took for took in seen.took_ms if took > 1)
    assert len(waited) == pytest.approx(len(meanwhile), abs=1)
    assert waited == pytest.approx(sorted((1.0 - at_s) * 1000 for at_s in meanwhile), abs=1)
    assert (percentile(seen.took_ms, 99) or 0) > 450


def test_also_where_every_connection_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.arrivals.CONNECTIONS_MAX", 1)
    seen = seen_of(lambda: Stalled(0.5, 1.0), seconds=2, rate_per_s=100)
    assert sum(took > 1 for took in seen.took_ms) > 40


def test_what_the_generator_is_late_itself_counts_and_is_told_apart() -> None:
    seen = seen_of(lambda: Connection(Pace()), late_s=0.004, seconds=2, rate_per_s=20)
    assert percentile(seen.took_ms, 50) == pytest.approx(4, abs=0.5)
    assert percentile(seen.late_ms, 50) == pytest.approx(4, abs=0.5)


def test_what_is_never_answered_has_failed_and_has_waited() -> None:
    seen = seen_of(lambda: Stalled(0.0, 1e6), seconds=1, rate_per_s=10)
    assert seen.failed == seen.requests > 0
    assert min(seen.took_ms) >= GRACE_S * 1000
    assert "no answer" in seen.errors


class Closes(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.close()


class Refuses(Closes):
    def data_received(self, data: bytes) -> None:
        self._transport.write(b"HTTP/1.1 429 X\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize(("server", "said"), ((Closes, "closed"), (Refuses, "429")))
def test_an_end_that_is_no_answer_is_told(server: type[Closes], said: str) -> None:
    seen = seen_of(server, seconds=1, rate_per_s=10)
    assert seen.failed == seen.requests > 0
    assert said in seen.errors[0]


def test_a_stream_is_timed_to_its_end() -> None:
    stream = replace(WHOLE, stream=True, output_tokens=8).body("fake")
    seen = seen_of(lambda: Connection(Pace(4, 5.0)), bodies=(stream,), seconds=1, rate_per_s=20)
    assert seen.failed == 0
    assert seen.output_tokens == 8 * seen.requests
    assert percentile(seen.took_ms, 50) == pytest.approx(20, abs=1)


def job(port: int = 1, **how: Any) -> Job:
    known: dict[str, Any] = {"tokens": ("a",), "bodies": (CHAT,), "seconds": 1.0}
    return Job(url=f"http://127.0.0.1:{port}/v1/chat/completions", **known | how)


def test_arrivals_are_the_seeds() -> None:
    one = list(arrivals(job(rate_per_s=200, seconds=50)))
    assert one == list(arrivals(job(rate_per_s=200, seconds=50)))
    assert one != list(arrivals(job(rate_per_s=200, seconds=50, seed="other")))
    assert len(one) == pytest.approx(10_000, rel=0.05)


async def in_this_loop(job: Job) -> Seen:
    return await Load(job).run()


@pytest.mark.parametrize(
    ("flaws", "fault"),
    (
        (Flaws(), None),
        (Flaws(overbills=1), "output_tokens"),
        (Flaws(leaks_holds=True), "open_holds left over"),
        (Flaws(cuts_streams=True), "answers broke"),
    ),
)
def test_a_wrong_ledger_is_found(
    flaws: Flaws, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "seen_apart", in_this_loop)
    monkeypatch.setattr(gateway, "WARM_S", 0.05)
    monkeypatch.setattr(gateway, "IDLE_S_MAX", 0.0)
    ask = Ask(rates_per_s=(50.0,), concurrencies=(1, 2), seconds=0.2, full_s=0.05)

    async def go() -> Round:
        async with running(Fake(flaws)) as site:
            subject = Subject(
                name=OURS,
                url=f"{site.base_url}/completions",
                tokens=("a",),
                bodies=(body(Completion("fake", 4, 3), "x").decode(),),
                constant_ms=0.0,
                cpu_s=lambda: 0.0,
                admin=site.admin,
            )
            return await one_round(subject, ask, 0)

    seen = asyncio.run(go())
    assert seen.verdict is not None
    assert seen.verdict.holds is (fault is None)
    if fault is None:
        assert seen.verdict.received.requests > 3
        assert faults_of({OURS: [seen]}) == []
    else:
        assert fault in seen.verdict.sentence()
        assert any(fault in each for each in faults_of({OURS: [seen]}))


def a_round(cpu_ms: float, p50_ms: float = 2.0, *, rates: tuple[float, ...] = (100.0,)) -> Round:
    return Round(
        Full(32, 500.0, cpu_ms),
        tuple(Rate(each, 800, p50_ms, 9.0, cpu_ms, 0.2) for each in rates),
        left_out=tuple({20.0, 100.0} - set(rates)),
        errors=(),
        verdict=None,
    )


def test_the_bars_are_beyond_the_disk_and_against_the_peer() -> None:
    judged = {bar.name: bar for bar in bars(a_round(1.5, 4.0), a_round(12.0), DISK)}
    assert [bar.value for bar in judged.values()] == [1.5, 2.5, 6.0, 8.0]
    assert all(bar.holds for bar in judged.values())
    assert not all(bar.holds for bar in bars(a_round(2.1), None, DISK))
    assert not all(bar.holds for bar in bars(a_round(1.5, 4.6), None, DISK))
    assert not all(bar.holds for bar in bars(a_round(1.5), a_round(11.0), DISK))


def test_a_rate_that_is_not_served_misses_its_bar() -> None:
    (_, rate) = bars(replace(a_round(1.5, rates=(20.0,)), full=Full(32, 90.0, 1.5)), None, DISK)
    assert rate == Bar("requests/s", 90.0, least=100 / gateway.SERVED_PART)
    assert not rate.holds


def test_a_summary_has_medians_and_every_rate_that_one_round_could_not_serve() -> None:
    found = summary([a_round(1.0, 1.0, rates=(20.0, 100.0)), a_round(3.0, 3.0), a_round(2.0, 2.0)])
    assert found.full.cpu_ms == 2.0
    assert [(rate.per_s, rate.p50_ms) for rate in found.rates] == [(100.0, 2.0)]
    assert found.left_out == (20.0,)
    text = "\n".join(lines({OURS: found}, DISK, bars(found, None, DISK)))
    assert "500 | 2.00 | 500" in text
    assert "no peer was measured" in text


def test_a_durable_write_takes_time(tmp_path: Path) -> None:
    one, three = (durable_ms(tmp_path, syncs=5, in_turn=count) for count in (1, 3))
    assert len(one) == len(three) == 5
    assert min(one) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("without", ((), ("book", "audit")))
def test_a_whole_lockgate_without_a_model(
    without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "WARM_S", 0.1)
    ask = Ask(rates_per_s=(20.0,), concurrencies=(4,), seconds=0.5, full_s=0.3)

    async def go() -> Round:
        async with ours(replace(WHOLE, stream=True), without=without) as subject:
            return await one_round(subject, ask, 0)

    seen = asyncio.run(go())
    assert seen.errors == ()
    assert seen.full.cpu_ms > 0
    if without:
        assert seen.verdict is None  # nothing was booked, so nothing can agree
    else:
        assert seen.verdict is not None
        assert seen.verdict.holds, seen.verdict.sentence()
