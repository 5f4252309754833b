"""OpenVINO GenAI as a peer: a library, so a small driver of ours holds it, in its own environment.

It reads our GGUF file itself.  What it is given is what the servers get (the same prompts, counts,
concurrencies), but over a pipe: its figures hold no HTTP, no text and no front.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from tests.bench.figures import Answer, Row, row
from tests.bench.load import Shape, prompt
from tests.bench.peer import READY_S_MAX, Program, present
from tests.bench.runs import (
    LONG_OUTPUT_TOKENS,
    LONG_REPEATS,
    WARM_TOKENS,
    Load,
    Round,
    first_token_ms,
    long_seed,
)

NAME = "openvino"
DRIVER = Path(__file__).with_name("openvino_driver.py")


class Flight(msgspec.Struct, frozen=True):
    """One request, as the driver timed it; `time.perf_counter` is one clock for all processes."""

    input_tokens: int
    output_tokens: int
    sent_s: float
    ended_s: float
    arrivals_s: list[float]

    def answer(self, asked_tokens: int) -> Answer:
        short = self.output_tokens != asked_tokens
        at = self.arrivals_s
        return Answer(
            asked_tokens=asked_tokens,
            sent_s=self.sent_s,
            ended_s=self.ended_s,
            first_s=at[0] if at else None,
            gaps_s=tuple(b - a for a, b in pairwise(at)),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            finish="length",
            error=f"short: {self.output_tokens} of {asked_tokens} tokens" if short else None,
        )


class _Said(msgspec.Struct, frozen=True):
    version: str = ""
    flights: list[Flight] = []


@dataclass(frozen=True, slots=True)
class Settings:
    venv: Path
    model: Path
    threads: int
    cache_gib: int = 2


@dataclass(slots=True)
class LibraryPeer:
    program: Program
    words: str
    name: str = NAME
    ready_s_max: float = READY_S_MAX

    async def started(self) -> float:
        begun = time.perf_counter()
        self.program.start()
        said = await self._heard(self.ready_s_max)
        self.words = f"{said.version}, {self.words}"
        return time.perf_counter() - begun

    async def round(self, load: Load, number: int) -> Round:
        rows: list[Row] = []
        errors: list[str] = []
        shape = Shape("", load.input_tokens, load.output_tokens)
        for concurrency in load.concurrencies:
            seed = f"{load.seed}/{number}/{concurrency}"
            warm = Shape("", load.input_tokens, WARM_TOKENS)
            seeds = [f"{seed}/warm/{each}" for each in range(concurrency)]
            await self._run(warm, concurrency, seeds, load.deadline_s)
            seeds = [f"{seed}/{each}" for each in range(concurrency * load.requests_per_stream)]
            answers = await self._run(shape, concurrency, seeds, load.deadline_s)
            rows.append(row(answers, concurrency=concurrency, client_cpu_s=0.0))
            errors += [answer.error or "?" for answer in answers if not answer.whole]
        long: list[Answer] = []
        if load.long_tokens is not None:
            asked = Shape("", load.long_tokens, LONG_OUTPUT_TOKENS)
            for each in range(LONG_REPEATS + 1):
                seeds = [long_seed(load, number, each)]
                long += await self._run(asked, 1, seeds, load.deadline_s)
        errors += [answer.error or "?" for answer in long if not answer.whole]
        return Round(
            rows=tuple(rows), errors=tuple(errors), verdict=None, long_ttft_ms=first_token_ms(long)
        )

    async def _run(
        self, shape: Shape, concurrency: int, seeds: Sequence[str], deadline_s: float
    ) -> list[Answer]:
        job = {
            "prompts": [prompt(shape, each) for each in seeds],
            "output_tokens": shape.output_tokens,
            "concurrency": concurrency,
        }
        process = self.program.process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
        except OSError:
            raise self._lost() from None
        said = await self._heard(deadline_s)
        return [flight.answer(shape.output_tokens) for flight in said.flights]

    async def _heard(self, deadline_s: float) -> _Said:
        """The next line.  A driver that says nothing in time is ended, or nobody would ever be free
        of the thread that waits for its pipe."""
        process = self.program.process
        assert process is not None
        assert process.stdout is not None
        reading = asyncio.create_task(asyncio.to_thread(process.stdout.readline))
        try:
            line = await asyncio.wait_for(asyncio.shield(reading), deadline_s)
        except TimeoutError:
            process.kill()
            await reading
            raise
        if not line:
            raise self._lost()
        return msgspec.json.decode(line, type=_Said)

    def _lost(self) -> RuntimeError:
        return RuntimeError(f"{self.name}'s driver ended; see {self.program.log_path}")

    def version(self) -> str:
        return self.words

    def pause(self) -> None:
        self.program.pause()

    def resume(self) -> None:
        self.program.resume()

    def stop(self) -> None:
        self.program.stop()


def make_openvino(settings: Settings, log_path: Path, driver: Sequence[str] = ()) -> LibraryPeer:
    python = settings.venv / "bin" / "python"
    present(python, settings.model, step="OpenVINO GenAI")
    command = [str(python), *(driver or [str(DRIVER)])]
    command += [str(settings.model), str(settings.threads), str(settings.cache_gib)]
    words = f"{settings.model.name}, {settings.threads} threads, no HTTP"
    return LibraryPeer(Program(command, log_path, talks=True), words)
