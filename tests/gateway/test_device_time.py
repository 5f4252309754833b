"""Device time from a request to the account: what is served, what dies, what is our fault, what is told to whom.

Source: MONEY.md §1, invariant 8; DESIGN.md, settled questions 5 and 9.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from executor.__main__ import EXIT_FAILED, prepare_process
from executor.client import ExecutorProcess
from executor.contract import OVERHEAD, ModelCard
from executor.echo import EchoExecutor
from executor.echo_card import VOCAB_SIZE, echo_card
from executor.server import Mailbox, Progress, serve
from executor.settings import Settings
from gateway.device_time import DeviceAccounts
from tenants.device_book import DeviceBook
from tenants.devices import DeviceReport
from tenants.schema.devices import TOLD
from tenants.store import StoreUnavailable
from tests.executor.fakes import ROOT, FakeRunner
from tests.gateway.inhouse import CHAT, MODEL, Inhouse, chat_body, inhouse
from tests.gateway.test_line import Hold, lived

RECONCILE, DEVICE = "/v1/admin/usage/reconcile", "/v1/admin/usage/device"


async def device_time(home: Inhouse) -> dict[str, Any]:
    answer = await home.operator().get(RECONCILE)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    device: dict[str, Any] = found["device_time"]
    assert device["agrees"] is found["agrees"] is True, found["disagreements"]
    parts = [device[f"{name}_ns"] for name in ("attributed", "idle", "faults", "lost", *TOLD)]
    assert sum(parts) == device["wall_ns"]
    return device


def test_gateway_and_book_know_the_same_kinds() -> None:
    assert set(OVERHEAD) == set(TOLD)


def test_what_was_served_is_the_requests_and_the_rest_idle(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await asyncio.gather(*(home.caller(name).chat("hi") for name in ("acme/bob", "acme/alice")))
        device = await device_time(home)
        assert device["attributed_ns"] == device["requests_ns"] > 0
        assert device["idle_ns"] > 0
        assert (device["running"], device["in_flight_ns"], device["lost_ns"]) == (1, 0, 0)
        again = await device_time(home)
        assert again["idle_ns"] > device["idle_ns"]
        assert again["attributed_ns"] == device["attributed_ns"]

    lived(tmp_path, story)


def test_what_dies_with_an_executor_is_lost_and_nothing_else_is(tmp_path: Path) -> None:
    hold = Hold(free=3)
    echo = EchoExecutor(gate=hold)

    async def story(home: Inhouse) -> None:
        asked = home.caller().start("POST", CHAT, chat_body("a long one", max_tokens=40))
        await hold.waiting.wait()
        running = await device_time(home)
        assert running["in_flight_ns"] == running["attributed_ns"] > 0
        echo.fail()
        assert (await asked.end()).status in {500, 503}
        echo.recover()
        hold.opened.set()
        assert (await home.caller().chat("again")).status == 200
        device = await device_time(home)
        assert (device["starts"], device["running"]) == (2, 1)
        assert device["lost_ns"] >= running["attributed_ns"]
        assert device["attributed_ns"] == device["requests_ns"] > 0
        assert device["difference_ns"] == device["in_flight_ns"] == 0

    lived(tmp_path, story, echo=echo)


def test_work_that_a_fault_of_ours_ended_is_no_customers(tmp_path: Path) -> None:
    echo = EchoExecutor(crash_at=2)

    async def story(home: Inhouse) -> None:
        failed = await home.caller().chat("hello", max_tokens=40)
        assert failed.status in {500, 503}
        device = await device_time(home)
        assert device["faults_ns"] > 0
        assert device["attributed_ns"] == device["requests_ns"] == device["lost_ns"] == 0
        path = "/v1/admin/requests/" + failed.headers["x-request-id"]
        shown = (await home.operator().get(path)).json()
        assert shown["cost_ms"] == 0
        assert shown["overhead_ms"] * 1e6 == pytest.approx(device["faults_ns"])

    lived(tmp_path, story, echo=echo)


def test_where_it_went_is_shown_by_model_and_time_to_operators_alone(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await home.caller().chat("hi")
        found = (await home.operator("operator/finance").get(DEVICE, "by=model,month")).json()
        (row,) = found["rows"]
        assert row["model"] == MODEL
        assert {name: row[name] for name in found["total"]} == found["total"]
        days = (await home.operator().get(DEVICE, "by=minute,day")).json()
        assert sum(each["idle_ns"] for each in days["rows"]) == days["total"]["idle_ns"]
        assert (await home.operator().get(DEVICE, "to=2001-01-01")).json()["rows"] == []
        for name in ("acme/finance", "acme/admin", "acme/alice", "operator/security"):
            for path in (DEVICE, RECONCILE):
                assert (await home.operator(name).get(path)).status == 403
        scraped = (await home.operator().get("/metrics")).body.decode()
        samples = {
            (each.name, each.labels.get("kind")): each.value
            for family in text_string_to_metric_families(scraped)
            for each in family.samples
            if each.name.startswith("lockgate_device_")
        }
        parts = [
            samples[(f"lockgate_device_{n}_seconds_total", None)] for n in ("attributed", "idle")
        ]
        parts += [samples[("lockgate_device_overhead_kind_seconds_total", kind)] for kind in TOLD]
        assert sum(parts) == pytest.approx(samples[("lockgate_device_wall_seconds_total", None)])

    lived(tmp_path, story)


class Away:
    """A book whose database comes and goes."""

    def __init__(self, book: DeviceBook) -> None:
        self.book = book
        self.away = True

    async def tell(self, heard: Any) -> None:
        if self.away:
            raise StoreUnavailable("away")
        await self.book.tell(heard)

    async def sweep(self, *, again: bool = False) -> int:
        return await self.book.sweep(again=again)


def test_while_the_database_is_away_nothing_is_lost(tmp_path: Path) -> None:
    """Executors come and go meanwhile; what they said last is written when it is back."""
    echo = EchoExecutor()

    async def story(home: Inhouse) -> None:
        away = Away(home.house.devices._book)
        home.house.devices._book = away  # type: ignore[assignment]
        for _ in range(4):
            assert (await home.caller().chat("hi")).status == 200
            with pytest.raises(StoreUnavailable):
                await home.house.devices.round()
            echo.fail()
            echo.recover()
        away.away = False
        device = await device_time(home)
        assert (device["starts"], device["running"]) == (5, 1)
        assert device["attributed_ns"] == device["requests_ns"] > 0
        assert device["lost_ns"] == 0
        assert home.house.devices._heard == {}

    lived(tmp_path, story, echo=echo)


def test_the_accounts_are_kept_beside_whatever_else_is_done(tmp_path: Path) -> None:
    """Round after round, one that fails included; and once more when the executors have ended."""

    async def story(home: Inhouse) -> None:
        told: list[tuple[DeviceReport, bool]] = []

        class Once:
            async def tell(self, heard: tuple[tuple[DeviceReport, bool], ...]) -> None:
                if not told:
                    told.extend(heard)
                    raise RuntimeError
                told.extend(heard)

            async def sweep(self, *, again: bool = False) -> int:
                return 0

        accounts = DeviceAccounts(Once(), home.house.log)  # type: ignore[arg-type]
        accounts.follow([(MODEL, home.echo)])
        keeping = asyncio.create_task(accounts.keep(every_s=0))
        while len(told) < 3:
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait({keeping})
        home.echo.fail()
        await accounts.last_words()
        assert [over for _, over in told][-1] is True
        assert {report.model for report, _ in told} == {MODEL}
        assert [each["event"] for each in home.logged] == ["housekeeping.failed"]

    lived(tmp_path, story)


def test_the_next_gateway_ends_what_the_last_one_left(tmp_path: Path) -> None:
    """It was killed: nobody said that its executor is over, nor what it did since the last round."""

    async def first(home: Inhouse) -> None:
        await home.caller().chat("hi")
        await home.house.devices.round()
        await home.caller().chat("and then")

    async def second(home: Inhouse) -> None:
        device = await device_time(home)
        assert (device["starts"], device["running"]) == (2, 1)
        assert device["attributed_ns"] == device["requests_ns"] > 0
        assert device["lost_ns"] == device["in_flight_ns"] == 0

    lived(tmp_path, first)
    lived(tmp_path, second)


# A real process.


def main() -> None:
    """An executor with the fake model behind the card that the echo has: `--socket PATH`."""
    path = Path(sys.argv[sys.argv.index("--socket") + 1])
    mailbox = Mailbox()
    prepare_process(mailbox.close)
    runner = FakeRunner(kv_blocks=512, block_tokens=16, context_tokens=4096, vocab_size=VOCAB_SIZE)

    def load(progress: Progress) -> tuple[ModelCard, FakeRunner]:
        progress("warming up", 0.5)
        return echo_card(context_tokens=4096, kv_blocks=512), runner

    serve(load, path, settings=Settings(pool_part=0.0), clock_ns=monotonic_ns, mailbox=mailbox)
    sys.exit(EXIT_FAILED)


COMMAND = (
    sys.executable,
    "-c",
    (
        f"import sys; sys.path.insert(0, {str(ROOT)!r});"
        " from tests.gateway.test_device_time import main; main()"
    ),
)


def process(
    tmp_path: Path, story: Callable[[Inhouse, ExecutorProcess], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        with TemporaryDirectory() as folder:
            async with (
                ExecutorProcess(COMMAND, Path(folder, "run")) as executor,
                inhouse(tmp_path) as home,
            ):
                await executor.wait_ready(60)
                home.house.deployments[MODEL].executor = executor
                home.house.devices.follow([(MODEL, executor)])
                async with asyncio.timeout(120):
                    await story(home, executor)

    asyncio.run(run())


@pytest.mark.slow
def test_an_executor_is_killed_in_the_middle_and_everything_adds_up(tmp_path: Path) -> None:
    async def story(home: Inhouse, executor: ExecutorProcess) -> None:
        async def some(count: int, tokens: int = 12) -> list[int]:
            answers = await asyncio.gather(
                *(home.caller().chat(f"hello {n}", max_tokens=tokens) for n in range(count))
            )
            return [answer.status for answer in answers]

        assert await some(4) == [200] * 4
        before = await device_time(home)
        assert before["attributed_ns"] == before["requests_ns"] > 0
        assert before["warm_up_ns"] > 0
        assert before["load_ns"] > 0
        running = asyncio.create_task(some(6, 3_000))
        while not executor.gauges.running:
            assert not running.done(), "it was over before it was seen"
            await asyncio.sleep(0.002)
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGKILL)
        assert set(await running) <= {200, 500, 503}
        await executor.wait_ready(60)
        assert await some(2) == [200] * 2
        device = await device_time(home)
        assert (device["starts"], device["running"]) == (2, 1)
        assert device["attributed_ns"] == device["requests_ns"] > before["attributed_ns"]
        assert device["in_flight_ns"] == device["difference_ns"] == 0

    process(tmp_path, story)


def test_a_request_says_in_which_start_it_ran(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat("hi")
        found = await home.house.book.explain(answer.headers["x-request-id"])
        assert found is not None
        assert found.record is not None
        device = home.echo.gauges.device
        assert device is not None
        assert found.record.device_start == device.start

    lived(tmp_path, story)
