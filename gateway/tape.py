"""What one piece of work answers, recorded as it is said, for as many as read it.

The work takes this for its caller: it sends here, and here it learns that nobody waits any more.  Readers come
and go; each hears everything from the first byte on, then what comes, byte for byte the same.  When the last has
left, the work goes on for `linger_s`, so that whoever lost a connection finds it still running; then it is told
that its caller has gone.

Bounded: beyond `bytes_max` nobody new is let in and nothing is kept, what all have heard is dropped, and the work
waits for its slowest reader, whom the front's own deadline ends, and for its first, whom `linger_s` does.
Refuses to know: what is said, who reads, keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.middleware.wire import ClientGone, Header, Message, Send, with_headers

READERS_MAX = 64


@dataclass(slots=True)
class Reader:
    """One of them.  `at`: of the parts that there ever were, the first that it has not heard."""

    at: int = 0
    why: BaseException | None = None


class Tape:
    def __init__(self, *, bytes_max: int, linger_s: float | None) -> None:
        """`linger_s` None: it goes on though nobody reads it."""
        self._bytes_max = bytes_max
        self._linger_s = linger_s
        self._head: Message | None = None
        self._parts: list[bytes] = []
        self._dropped = 0
        self._size = 0
        self._whole = True
        self._said_all = False
        self._closed = False
        self._why: BaseException | None = None
        self._stopped: Exception | None = None
        self._readers: list[Reader] = []
        self._awaited = linger_s is not None  # whoever began it is on the way to its seat
        self._changed = asyncio.Event()
        self._left = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    # For the work: an ASGI caller.

    async def receive(self) -> Message:
        """The work has read its body; what comes next is that nobody waits."""
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
        else:
            part = message.get("body", b"")
            self._said_all = not message.get("more_body", False)
            if part:
                self._parts.append(part)
                self._size += len(part)
        self._stir()
        self._whole &= self._size <= self._bytes_max
        while self._size > self._bytes_max and self._is_stream():
            self._drop()
            if self._size <= self._bytes_max:
                break
            await self._changed.wait()

    def close(self, why: BaseException | None = None) -> None:
        """Nothing more comes.  `why`: what the work ended with, which its readers hear in its place."""
        self._why = why
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._stir()

    # For who keeps it.

    @property
    def status(self) -> int | None:
        return None if self._head is None else self._head["status"]

    @property
    def is_complete(self) -> bool:
        """It was said to its end."""
        return self._said_all

    @property
    def admits(self) -> bool:
        return self._whole and len(self._readers) < READERS_MAX

    def so_far(self) -> bytes | None:
        """What was said; None where a part is missing."""
        return b"".join(self._parts) if self._whole else None

    def answer(self) -> tuple[int, tuple[Header, ...], bytes] | None:
        """Status, headers and body, once all of it was said; None where a part is missing."""
        if self._head is None or not (self._whole and self._said_all):
            return None
        headers = tuple((bytes(name), bytes(value)) for name, value in self._head["headers"])
        return self._head["status"], headers, b"".join(self._parts)

    # For readers.

    def touch(self) -> None:
        """Somebody has asked for it: they may come back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._linger_s is not None and not self._readers and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self.abandon)

    def abandon(self, why: Exception | None = None) -> None:
        """`why`: what whoever has heard nothing of it yet hears, where the work has no words of its own."""
        self._stopped = why
        self._left.set()
        self._stir()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A seat, from the first byte on: to be taken while it `admits`."""
        reader = Reader()
        self._readers.append(reader)
        self._awaited = False
        self.touch()
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            self.touch()
            self._stir()

    def interrupt(self, reader: Reader, why: BaseException) -> None:
        """It may hear no more; the others go on."""
        reader.why = why
        self._stir()

    async def begun(self) -> None:
        """Until its first word, or its end."""
        while self._head is None and not self._closed:
            await self._changed.wait()

    async def play(self, reader: Reader, send: Send, more: tuple[Header, ...] = ()) -> None:
        """All of it to one reader.  What is no stream is held back until it is closed, since it is complete for whoever
        has its last byte.  Raises what the work or the reader was ended with, once everything before it was said."""
        while not (self._closed or self._is_stream()):
            await self._wait(reader)
        if self._head is None:
            gone = self._why is None or isinstance(self._why, ClientGone)
            raise (self._stopped if gone else self._why) or ClientGone()
        await send(with_headers(self._head, more))
        async for part in self._following(reader):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self._why is not None:
            raise self._why
        if not self._said_all:
            raise ClientGone
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _following(self, reader: Reader) -> AsyncIterator[bytes]:
        while True:
            while reader.at < self._dropped + len(self._parts):
                assert reader.at >= self._dropped  # who has a seat is waited for
                parts = self._parts[reader.at - self._dropped :]
                reader.at += len(parts)
                yield b"".join(parts)
                self._stir()  # it has been taken
                if reader.why is not None:
                    raise reader.why
            if self._closed:
                return
            await self._wait(reader)

    async def _wait(self, reader: Reader) -> None:
        await self._changed.wait()
        if reader.why is not None:
            raise reader.why

    def _drop(self) -> None:
        """What everybody has heard."""
        if self._awaited:
            return
        heard = min((each.at for each in self._readers), default=self._dropped + len(self._parts))
        count = heard - self._dropped
        self._size -= sum(map(len, self._parts[:count]))
        del self._parts[:count]
        self._dropped = heard

    def _is_stream(self) -> bool:
        return self._head is not None and any(
            name == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in self._head["headers"]
        )

    def _stir(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
