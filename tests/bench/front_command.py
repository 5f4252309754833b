"""`python -m tests.bench front`: what the front holds, what it adds, and how it bears three times what it can serve."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from tests.bench.fake_executor import Pace
from tests.bench.front import (
    PART_OF_CAPACITY,
    Added,
    Bar,
    Beyond,
    Held,
    Party,
    added,
    asks,
    bars,
    beyond,
    capacity,
    held_idle,
    held_streams,
    middle,
)
from tests.bench.gateway_subjects import Shape, running
from tests.bench.machine import this_machine
from tests.bench.options import print_json, say
from tests.bench.peer import Program
from tests.bench.server import REPOSITORY, Server, free_port
from tests.bench.show import columns
from tests.bench.wire import Client, Endpoint

TENANTS = ("acme", "globex", "nightly", "alarm")
PEOPLE = tuple((tenant, f"user{k}") for tenant in TENANTS for k in range(4))
MORE = """
[classes.batch]
floor = 0.05

[classes.critical]
reserved = 0.2

[plans.nightly]
models = ["smollm2-135m"]
classes = ["batch"]
limits = { concurrent = 1024 }

[plans.alarm]
models = ["smollm2-135m"]
classes = ["critical"]
limits = { concurrent = 1024 }

[tenants.nightly]
plan = "nightly"

[tenants.alarm]
plan = "alarm"
"""
INSTANT = Shape(Pace(), 16, stream=False)
PATIENT = Shape(Pace(300, 100.0), 300, stream=True)
"""Streams that last for half a minute."""
LOADS = (1, 2, 3)
BAD = "eyJhbGciOiJFUzI1NiIsInR5cCI6ImF0K2p3dCIsImtpZCI6Im5vbmUifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"


@dataclass(frozen=True, slots=True)
class Front:
    held: tuple[Held, ...]
    added: tuple[Added, ...]
    capacity_per_s: float
    loads: tuple[tuple[Beyond, ...], ...]  # by load, a round each
    flood: tuple[Beyond, ...]  # half of capacity: alone, and beside bad credentials


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "front", help="connections held, latency added, and what happens beyond capacity"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the servers' state and logs")
    parser.add_argument("--idle", type=int, default=1000, help="connections held idle")
    parser.add_argument("--streams", type=int, default=256, help="streams held open")
    parser.add_argument("--each", type=int, default=50, help="requests of an endpoint in each turn")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--without-door", action="store_true", help="nobody is turned away")
    parser.set_defaults(run=front)


def front(options: argparse.Namespace) -> int:
    machine = this_machine(REPOSITORY)
    say(options, machine.sentence())
    folder = Path(tempfile.mkdtemp(prefix="lockgate-bench-"))
    try:
        seen = uvloop.run(measured(options, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    judged = bars(seen.loads)
    if options.json:
        print_json(machine=machine, front=seen, bars=judged)
    else:
        print(*lines(seen, judged), sep="\n")
    return 0 if all(bar.holds for bar in judged) else 1


async def measured(options: argparse.Namespace, folder: Path) -> Front:
    held: list[Held] = []
    if options.idle or options.streams:
        async with ours(options, PATIENT) as server:
            if options.idle:
                held.append(await held_idle(server.site, server.pid, options.idle))
            if options.streams:
                tokens, body = _of(server, "acme", "globex"), PATIENT.body(server.site.model)
                held.append(
                    await held_streams(server.site, server.pid, tokens, body, options.streams)
                )
    async with ours(options, INSTANT) as server:
        found = [] if not options.each else await _added(options, server, folder)
        return Front(tuple(held), tuple(found), *await _beyond(options, server))


@asynccontextmanager
async def ours(options: argparse.Namespace, shape: Shape) -> AsyncIterator[Server]:
    server = Server.prepare(people=PEOPLE, more=MORE)
    server.keep = options.keep
    command = [sys.executable, "-m", "tests.bench.modelless", *shape.options()]
    command += ["--config", str(server.folder / "lockgate.toml")]
    server.command = (*command, *(["--without=door"] if options.without_door else []))
    try:
        await server.started()
        yield server
    finally:
        server.__exit__()


def _of(server: Server, *tenants: str) -> tuple[str, ...]:
    return tuple(
        server.site.tokens[f"{tenant}/{user}"] for tenant, user in PEOPLE if tenant in tenants
    )


async def _added(options: argparse.Namespace, server: Server, folder: Path) -> list[Added]:
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.front_bare", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    (token, *_) = _of(server, "acme")
    home = Endpoint.parse(server.site.base_url)
    async with running(Program(command, folder / "bare.log"), url, "/health"):
        clients = Client(Endpoint(home.host, home.port), token), Client(Endpoint.parse(url), token)
        try:
            return [
                await added(*clients, ask, turns=options.repeat, each=options.each)
                for ask in asks(server.site.model, INSTANT.output_tokens)
            ]
        finally:
            for client in clients:
                client.close()


async def _beyond(
    options: argparse.Namespace, server: Server
) -> tuple[float, tuple[tuple[Beyond, ...], ...], tuple[Beyond, ...]]:
    """The loads in turn, each round anew."""
    parties = (
        Party("critical", _of(server, "alarm"), 1),
        Party("interactive", _of(server, "acme", "globex"), 3),
        Party("batch", _of(server, "nightly"), 6),
    )
    url = f"{server.site.base_url}/chat/completions"
    body = INSTANT.body(server.site.model)
    most = await capacity(url, parties, body, seconds=1.5, seed=f"{options.seed}/capacity")

    async def load(name: str, who: Sequence[Party], rate: float) -> Beyond:
        return await beyond(
            *(name, url, who, body),
            rate_per_s=rate,
            seconds=options.seconds,
            seed=f"{options.seed}/{name}",
        )

    rounds = []
    for number in range(options.repeat):
        rounds.append([await load(f"{times} x", parties, times * most) for times in LOADS])
        say(
            options,
            f"round {number + 1}: {', '.join(f'{e.goodput_per_s:.0f}/s' for e in rounds[-1])}",
        )
    good = Party("interactive", _of(server, "acme", "globex"), 1)
    half = PART_OF_CAPACITY * most
    flood = (
        await load("half", [good], half),
        await load("half, and bad credentials", [good, Party("bad", (BAD,), 5)], half * 6),
    )
    return most, tuple(zip(*rounds, strict=True)), flood


def lines(seen: Front, judged: Sequence[Bar]) -> list[str]:
    found = [f"held: {e.count} {e.what}, {e.kib_each:.1f} KiB each" for e in seen.held]
    if seen.added:
        cells = [["added ms", "p50", "p99", "bare p50", "bare p99"]]
        for each in seen.added:
            figures = (each.p50, each.p99, each.bare_p50, each.bare_p99)
            cells.append([each.name, *(f"{figure:.2f}" for figure in figures)])
        found += columns(cells)
    found.append(f"capacity: {seen.capacity_per_s:.0f} requests/s")
    head = ["load", "arrived/s", "goodput/s", "class", "served", "of", "served p50", "p99 ms"]
    cells = [[*head, "refused", "refused p50", "p99 ms", "other"]]
    for load in (*map(middle, seen.loads), *seen.flood):
        for number, fared in enumerate((load.whole, *load.parties)):
            first = number == 0
            cells.append(
                [
                    load.name if first else "",
                    f"{load.arrived_per_s:.0f}" if first else "",
                    f"{load.goodput_per_s:.0f}" if first else "",
                    *(fared.name, f"{fared.share:.2f}", str(fared.arrived)),
                    *(_ms(fared.served_p50_ms), _ms(fared.served_p99_ms), str(fared.refused)),
                    *(_ms(fared.refused_p50_ms), _ms(fared.refused_p99_ms), str(fared.other)),
                ]
            )
    found += columns(cells)
    late = max(load.late_p99_ms for load in (*map(middle, seen.loads), *seen.flood))
    found.append(f"the generator was late by {late:.1f} ms at most (p99)")
    for bar in judged:
        bound = f"at most {bar.most:g}" if bar.most is not None else f"at least {bar.least:g}"
        found.append(
            f"{bar.name}: {bar.value:.2f} ({bound}): {'holds' if bar.holds else 'DOES NOT HOLD'}"
        )
    return found


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
