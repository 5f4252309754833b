"""A bare ASGI app on the product's own listener: what sockets, byte guard and HTTP cost without anything behind.

    python -m tests.bench.front_bare --port PORT

It answers every request at once with what a Lockgate would say of that length: whole, or as a stream.
Refuses to know: who asks, and whatever is beside `stream`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import msgspec
from starlette.types import Receive, Scope, Send

from gateway import listen
from gateway.guard import read_body
from gateway.listen import Bound, Listener, Reports
from tests.bench.fake_executor import Pace
from tests.bench.fake_upstream import Ask, answer

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
_ASK = msgspec.json.Decoder(Ask)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(receive, limit=1 << 22)
    if not body:
        await _say(send, JSON, b'{"status":"ok"}')
        return
    ask = _ASK.decode(body)
    (said,) = answer(ask, Pace()).data
    await _say(send, EVENTS if ask.stream else JSON, said.partition(b"\r\n\r\n")[2])


async def _say(send: Send, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(port: int) -> None:
    """Until it is killed."""

    def ready(_: Sequence[Bound]) -> None:
        pass

    await listen.serve(
        [Listener("bare", app, f"127.0.0.1:{port}")],
        shutdown=asyncio.Event(),
        drain_s=0,
        on_ready=ready,
        mint=lambda: "req_bare",
        reports=Reports(refused=lambda _: None, failed=lambda _: None),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.front_bare")
    parser.add_argument("--port", type=int, required=True)
    with asyncio.Runner(loop_factory=listen.loop_factory()) as runner:
        runner.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
