"""What `python -m tests.bench gateway` measures, each started for its turn and ended after it.

Refuses to know: load, figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import config, peer_litellm
from tests.bench.admin import until
from tests.bench.fake_executor import Pace
from tests.bench.framing import WireError
from tests.bench.gateway import Subject
from tests.bench.peer import Program
from tests.bench.processes import Cost, descendants
from tests.bench.server import Server, free_port
from tests.bench.wire import Client, Endpoint

OURS, BARE, PEER, FLOOR = "lockgate", "bare", peer_litellm.NAME, "floor"
PEOPLE = tuple((tenant, f"user{k}") for tenant in config.TENANTS for k in range(4))
WORDS = "Say what the river says to the quiet stone by the market in the summer. "
READY_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What every request asks, and how the fake behind the gateway answers."""

    pace: Pace
    output_tokens: int
    stream: bool

    def body(self, model: str) -> str:
        ask: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": WORDS * 2}],
            "max_tokens": self.output_tokens,
            "temperature": 0,
        }
        if self.stream:
            ask |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(ask)

    def options(self) -> list[str]:
        return ["--steps", str(self.pace.steps), "--step-ms", str(self.pace.step_ms)]


WHOLE = Shape(Pace(), 16, stream=False)
STREAM = Shape(Pace(64, 10.0), 64, stream=True)


@asynccontextmanager
async def ours(
    shape: Shape, *, name: str = OURS, without: Iterable[str] = (), keep: bool = False
) -> AsyncIterator[Subject]:
    """A production configuration around the fake executor.  Without its book there is none to compare."""
    server = Server.prepare(people=PEOPLE)
    server.keep = keep
    command = [sys.executable, "-m", "tests.bench.modelless"]
    command += ["--config", str(server.folder / "lockgate.toml"), *shape.options()]
    server.command = (*command, *(f"--without={part}" for part in without))
    try:
        await server.started()
        site = server.site
        yield Subject(
            name=name,
            url=f"{site.base_url}/chat/completions",
            tokens=tuple(site.tokens[f"{tenant}/{user}"] for tenant, user in PEOPLE),
            bodies=(shape.body(site.model),) * len(PEOPLE),
            constant_ms=shape.pace.constant_ms,
            cpu_s=lambda: Cost.of(server.pid).cpu_s,  # its one child is the fake executor
            admin=None if "book" in without else site.admin,
        )
    finally:
        server.__exit__()


@asynccontextmanager
async def litellm(shape: Shape, venv: Path, folder: Path) -> AsyncIterator[Subject]:
    """The proxy in front of a fake upstream.  RuntimeError that names the log where it does not start."""
    keys = tuple(f"sk-bench-{number}" for number in range(len(PEOPLE)))
    async with upstream(shape, folder) as base_url:
        proxy = peer_litellm.make_proxy(venv, folder, base_url, keys)
        async with running(proxy.program, proxy.url, "/health/liveliness") as pid:
            yield Subject(
                name=PEER,
                url=proxy.url,
                tokens=keys,
                bodies=(shape.body(peer_litellm.MODEL),) * len(keys),
                constant_ms=shape.pace.constant_ms,
                cpu_s=lambda: sum(Cost.of(each).cpu_s for each in (pid, *descendants(pid))),
            )


@asynccontextmanager
async def floor(shape: Shape, folder: Path) -> AsyncIterator[Subject]:
    """The fake upstream by itself: what machine and load generator cost."""
    async with upstream(shape, folder) as base_url:
        yield Subject(
            name=FLOOR,
            url=f"{base_url}/chat/completions",
            tokens=("none",),
            bodies=(shape.body("fake"),),
            constant_ms=shape.pace.constant_ms,
            cpu_s=lambda: 0.0,
        )


@asynccontextmanager
async def upstream(shape: Shape, folder: Path) -> AsyncIterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.fake_upstream", "--port", str(port)]
    program = Program([*command, *shape.options()], folder / "upstream.log")
    base_url = f"http://127.0.0.1:{port}/v1"
    async with running(program, base_url, "/"):
        yield base_url


@asynccontextmanager
async def running(program: Program, url: str, health: str) -> AsyncIterator[int]:
    """Its process id, once `health` answers."""
    at = Endpoint.parse(url)

    async def answers() -> bool:
        client = Client(Endpoint(at.host, at.port))
        try:
            async with client.request("GET", health) as reply:
                await reply.read()
                return reply.status == 200
        except (OSError, WireError):
            return False
        finally:
            client.close()

    async def answers_or_dead() -> bool:
        return program.ended or await answers()

    process = program.start()
    try:
        took_s = await until(answers_or_dead, deadline_s=READY_S_MAX)
        if took_s is None or program.ended:
            raise RuntimeError(f"{program.command[0]} did not become ready; see {program.log_path}")
        yield process.pid
    finally:
        program.stop()
