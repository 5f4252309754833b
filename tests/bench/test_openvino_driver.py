"""The driver's closed loop over a library that is none; the peer's side over a driver that is none."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.openvino_driver import closed_loop
from tests.bench.peer import Program
from tests.bench.peer_openvino import LibraryPeer
from tests.bench.runs import Load

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

LOAD = Load(concurrencies=(1, 2), input_tokens=5, output_tokens=4, requests_per_stream=2)


@dataclass
class Handle:
    wanted: int
    unread: list[int] = field(default_factory=list)
    given: int = 0

    def can_read(self) -> bool:
        return bool(self.unread)

    def read(self) -> Mapping[int, Any]:
        return {0: SimpleNamespace(generated_ids=[self.unread.pop()])}

    def get_status(self) -> str:
        return "FINISHED" if self.given == self.wanted else "RUNNING"


@dataclass
class Library:
    wanted: int
    handles: list[Handle] = field(default_factory=list)
    together: int = 0
    now_s: float = 0.0

    def add(self, number: int, prompt: Sequence[int]) -> Handle:
        assert number == len(self.handles)
        self.handles.append(Handle(self.wanted))
        return self.handles[-1]

    def step(self) -> None:
        live = [handle for handle in self.handles if handle.get_status() == "RUNNING"]
        self.together = max(self.together, len(live))
        self.now_s += 1.0
        for handle in live:
            handle.unread.append(7)
            handle.given += 1


def test_as_many_are_in_flight_as_asked_and_each_is_timed() -> None:
    library = Library(wanted=3)
    flights = closed_loop(
        library.add,
        library.step,
        lambda handle: handle.get_status() != "RUNNING",
        [[1, 2], [3], [4], [5]],
        2,
        lambda: library.now_s,
    )
    assert library.together == 2
    assert [flight.output_tokens for flight in flights] == [3] * 4
    assert [flight.sent_s for flight in flights] == [0.0, 0.0, 3.0, 3.0]
    assert flights[2].arrivals_s == [4.0, 5.0, 6.0]
    assert flights[0].input_tokens == 2


DRIVER = """
import json, sys, time
print(json.dumps({"version": "fake 1"}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    count = job["output_tokens"] - %d
    print(json.dumps({"flights": [
        {"input_tokens": len(p), "output_tokens": count, "sent_s": 1.0, "ended_s": 2.0,
         "arrivals_s": [1.5] * count} for p in job["prompts"]]}), flush=True)
"""


def peer(tmp_path: Path, program: str) -> LibraryPeer:
    command = [sys.executable, "-c", program]
    return LibraryPeer(Program(command, tmp_path / "log", talks=True), "words")


def test_a_round_over_the_pipes(tmp_path: Path) -> None:
    async def go() -> None:
        library = peer(tmp_path, DRIVER % 0)
        try:
            await library.started()
            library.pause()
            library.resume()
            seen = await library.round(LOAD, 0)
        finally:
            library.stop()
        assert library.version() == "fake 1, words"
        assert [row.requests for row in seen.rows] == [2, 4]
        assert [row.output_tokens for row in seen.rows] == [8, 16]
        assert seen.rows[0].ttft_p50_ms == pytest.approx(500)
        assert seen.errors == ()
        assert seen.long_ttft_ms is None

    asyncio.run(go())


def test_an_answer_that_is_short_is_an_error(tmp_path: Path) -> None:
    async def go() -> None:
        library = peer(tmp_path, DRIVER % 1)
        try:
            await library.started()
            seen = await library.round(LOAD, 0)
        finally:
            library.stop()
        assert seen.errors[0] == "short: 3 of 4 tokens"
        assert seen.rows[0].errors == 2

    asyncio.run(go())


def test_a_driver_that_dies_is_named_with_its_log(tmp_path: Path) -> None:
    async def go() -> None:
        library = peer(tmp_path, "raise SystemExit(3)")
        try:
            with pytest.raises(RuntimeError, match="driver ended; see"):
                await library.started()
        finally:
            library.stop()

    asyncio.run(go())
