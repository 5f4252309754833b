"""An OpenAI-shaped HTTP server that computes nothing: what a proxy has behind it while it is measured.

    python -m tests.bench.fake_upstream --port PORT [--steps N --step-ms MS]

Every request gets the same answer at the same pace as from `fake_executor`: whole, or as a stream where it
asks for one.  Asked directly it says what the load generator and the machine cost by themselves.
Refuses to know: who asks, with which key, and whatever is beside `stream` and `max_tokens`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from dataclasses import dataclass
from typing import cast

import msgspec
import uvloop

from tests.bench.fake_executor import Pace

INPUT_TOKENS = 24
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_COMMON = {"id": "chatcmpl-fake", "created": 1_780_000_000, "model": "fake"}


class Ask(msgspec.Struct):
    stream: bool = False
    max_tokens: int = 16


_ASK = msgspec.json.Decoder(Ask)


@dataclass(frozen=True, slots=True)
class Pieces:
    """What is sent, and how long after the piece before."""

    data: tuple[bytes, ...]
    wait_ms: float


def answer(ask: Ask, pace: Pace) -> Pieces:
    tokens = ask.max_tokens
    usage = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": INPUT_TOKENS + tokens,
    }
    if not ask.stream:
        message = {"role": "assistant", "content": "a" * tokens}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        whole = {**_COMMON, "object": "chat.completion", "choices": [choice], "usage": usage}
        body = msgspec.json.encode(whole)
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return Pieces((b"HTTP/1.1 200 OK\r\n" + head.encode() + body,), pace.constant_ms)
    start = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    said = [tokens * (at + 1) // pace.steps - tokens * at // pace.steps for at in range(pace.steps)]
    data = [_chunk([{"index": 0, "delta": {"content": "a" * count}}]) for count in said if count]
    data[0] = start + data[0]
    end = [{"index": 0, "delta": {}, "finish_reason": "length"}]
    data[-1] += _chunk(end) + _chunk([], usage=usage) + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return Pieces(tuple(data), pace.step_ms)


def _chunk(choices: list[dict[str, object]], **more: object) -> bytes:
    event = {**_COMMON, "object": "chat.completion.chunk", "choices": choices, **more}
    return _framed(b"data: " + msgspec.json.encode(event) + b"\n\n")


def _framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Connection(asyncio.Protocol):
    """One request at a time, as HTTP clients send them."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        found = _LENGTH.search(bytes(self._buffer[:end]) + b"\r\n")
        length = int(found[1]) if found else 0
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        self._buffer.clear()
        pieces = answer(_ASK.decode(body or b"{}"), self._pace)
        self._say(pieces, 0)

    def _say(self, pieces: Pieces, said: int) -> None:
        if said == len(pieces.data):
            return
        if pieces.wait_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(pieces.wait_ms / 1000, self._said, pieces, said)
        else:
            self._transport.write(b"".join(pieces.data))

    def _said(self, pieces: Pieces, said: int) -> None:
        if not self._transport.is_closing():
            self._transport.write(pieces.data[said])
            self._say(pieces, said + 1)


async def serve(port: int, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(pace), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fake_upstream")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0.0)
    options = parser.parse_args()
    uvloop.run(serve(options.port, Pace(options.steps, options.step_ms)))


if __name__ == "__main__":
    main()
