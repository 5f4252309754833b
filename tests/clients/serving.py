"""A server on loopback in a thread of its own: the whole front and the line around an echo executor,
so that real client libraries meet real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.types import ASGIApp

from gateway import listen
from gateway.app import public_app
from gateway.bootstrap import draw_seed, request_ids
from gateway.guard import front
from gateway.listen import Bound, Listener, Reports
from tests.gateway.inhouse import Inhouse, inhouse

T = TypeVar("T")
START_S_MAX = 20.0


@dataclass
class Serving:
    base_url: str
    home: Inhouse
    loop: asyncio.AbstractEventLoop
    attempts: list[tuple[int, str | None]] = field(default_factory=list)
    """Of each request: the status, and how often the client says it has tried before."""
    sent: int = 0
    """Parts of bodies that left."""

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run something in the server's own loop."""

        async def run() -> T:
            return await make()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_S_MAX)

    def until(self, seen: Callable[[], bool]) -> None:
        """Wait in the server's own loop."""

        async def soon() -> None:
            async with asyncio.timeout(START_S_MAX / 2):
                while not seen():
                    await asyncio.sleep(0.005)

        self.call(soon)

    def take_attempts(self) -> list[tuple[int, str | None]]:
        taken, self.attempts[:] = list(self.attempts), []
        return taken

    def at_rest(self) -> None:
        """Soon nothing is left of any request."""
        house = self.home.house
        self.until(
            lambda: (
                not (
                    len(house.live)
                    or len(house.runs)
                    or house.tempo.leases
                    or house.door.gate.at_work
                )
            )
        )
        self.call(self.home.at_rest)


@contextmanager
def serving(
    folder: Path, origins: Sequence[str] = (), *, docs: bool = False, **options: Any
) -> Iterator[Serving]:
    """`origins`: whose pages may ask.  `docs`: the documentation is public."""
    started: list[Serving] = []
    up, stop = threading.Event(), asyncio.Event()
    faults: list[BaseException] = []

    async def main() -> None:
        async with inhouse(folder, **options) as home:
            here = Serving("", home, asyncio.get_running_loop())
            started.append(here)
            ids = request_ids()
            app = front(
                public_app(home.house, draw_seed, docs=docs),
                hosts=["127.0.0.1"],
                origins=origins,
                mint=ids,
                report=lambda request_id, why: faults.append(why),
                stalled=lambda request_id: None,
                door=home.house.door,
            )

            def ready(bound: list[Bound] | Any) -> None:
                here.base_url = bound[0].url + "/v1"
                up.set()

            await listen.serve(
                [Listener("public", noting(app, here), "127.0.0.1:0", home.house.door)],
                shutdown=stop,
                drain_s=5,
                on_ready=ready,
                mint=ids,
                reports=Reports(refused=lambda fault: None, failed=faults.append),
            )

    def run() -> None:
        """In the product's loop.  Python's own leaks a connection that comes as it closes its doors."""
        with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, name="serving")
    thread.start()
    try:
        assert up.wait(START_S_MAX)
        yield started[0]
    finally:
        if started:
            started[0].loop.call_soon_threadsafe(stop.set)
        thread.join(START_S_MAX)
    assert not thread.is_alive()
    assert faults == []


def noting(app: ASGIApp, here: Serving) -> ASGIApp:
    async def noted(scope: Any, receive: Any, send: Any) -> None:
        tried = dict(scope["headers"]).get(b"x-stainless-retry-count")

        async def told(message: Any) -> None:
            if message["type"] == "http.response.start":
                here.attempts.append((message["status"], tried and tried.decode()))
            else:
                here.sent += 1
            await send(message)

        await app(scope, receive, told)

    return noted
