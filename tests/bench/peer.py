"""What a peer is to the bench: something that starts, answers a round, stands still, and ends.

Behind `Peer` stand servers over HTTP (`HttpPeer`: vLLM, llama.cpp, any other that runs already) and a
library in a process of its own (`peer_openvino`).  While others are measured a peer is stopped by
signal, so that nothing else runs; one that we did not start is left alone.
Refuses to know: which peer it is, figures, who wins.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.bench.admin import until
from tests.bench.framing import WireError
from tests.bench.processes import descendants, end, signal_family
from tests.bench.runs import Load, Round, Subject, one_round, shape_of
from tests.bench.wire import Client, Endpoint

READY_S_MAX = 600.0  # some compile on their first start
STOP_S_MAX = 60.0


class Peer(Protocol):
    @property
    def name(self) -> str: ...

    async def started(self) -> float:
        """Ready, after so many seconds.  RuntimeError that names the log if it never is."""
        ...

    async def round(self, load: Load, number: int) -> Round: ...

    def version(self) -> str:
        """What was measured, in words.  Asked once it has started."""
        ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def stop(self) -> None:
        """Also of one that never started, or that died."""
        ...


@dataclass(slots=True)
class Program:
    """A process that we start, with what it says in a log."""

    command: Sequence[str]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    talks: bool = False  # over its standard input and output; else these are closed and the log
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        assert self.process is None
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                list(self.command),
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE if self.talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.talks else log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def pause(self) -> None:
        if self.process is not None and not self.ended:
            signal_family(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None and not self.ended:
            signal_family(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        process = self.process
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        if self.ended:
            return
        family = descendants(process.pid)
        self.resume()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S_MAX)
        end(family)


@dataclass(slots=True)
class HttpPeer:
    """`program` None: it runs already, and is neither paused nor ended."""

    name: str
    base_url: str
    model: str
    words: str
    program: Program | None = None
    ready_s_max: float = READY_S_MAX

    async def started(self) -> float:
        begun = time.perf_counter()
        program = self.program
        if program is not None:
            program.start()

        async def healthy_or_dead() -> bool:
            return (program is not None and program.ended) or await self._healthy()

        took_s = await until(healthy_or_dead, deadline_s=self.ready_s_max if program else 0.0)
        if took_s is None or (program is not None and program.ended):
            self.stop()
            where = f"nobody answers at {self.base_url}"
            where = where if program is None else f"see {program.log_path}"
            raise RuntimeError(f"{self.name} did not become ready; {where}")
        return time.perf_counter() - begun

    async def round(self, load: Load, number: int) -> Round:
        subject = Subject(self.name, self.base_url, self.model)
        return await one_round(subject, load, await shape_of(subject, load), number)

    def version(self) -> str:
        return self.words

    def pause(self) -> None:
        if self.program is not None:
            self.program.pause()

    def resume(self) -> None:
        if self.program is not None:
            self.program.resume()

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()

    async def _healthy(self) -> bool:
        """Of one that was started, its health; of another, whether it lists models."""
        at = Endpoint.parse(self.base_url)
        path = f"{at.prefix}/models" if self.program is None else "/health"
        client = Client(Endpoint(at.host, at.port))
        try:
            async with client.request("GET", path) as reply:
                await reply.read()
                return reply.status == 200
        except (OSError, WireError, TimeoutError):
            return False
        finally:
            client.close()


def present(*paths: Path, step: str) -> None:
    """FileNotFoundError that names the README's section, where one is absent."""
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"no {path}; tests/bench/README.md, {step!r}, installs it")
