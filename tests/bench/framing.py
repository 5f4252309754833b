"""Bytes in, pieces out: HTTP/1.1 body framing and server-sent events, without any I/O.

Refuses to know: sockets, clocks, what the pieces mean.
Source: RFC 9112 §7.1 (chunked), HTML Living Standard §9.2 (event streams).
"""

from __future__ import annotations

from dataclasses import dataclass


class WireError(Exception):
    """The peer closed early, or said something that is no HTTP/1.1."""


class Chunked:
    """Take chunked framing off; `done` after the last chunk's trailer."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # payload and its CRLF still to come; 0: a size line is due
        self.done = False

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        out = bytearray()
        while self._buffer and not self.done:
            if self._left:
                taken = bytes(self._buffer[: self._left])
                del self._buffer[: len(taken)]
                out += taken[: max(0, self._left - 2)]
                self._left -= len(taken)
                continue
            end = self._buffer.find(b"\r\n")
            if end < 0:
                break
            try:
                size = int(bytes(self._buffer[:end]).split(b";")[0], 16)
            except ValueError as error:
                raise WireError("expected a chunk size in hexadecimal") from error
            if size == 0:
                trailer_end = self._buffer.find(b"\r\n\r\n", end)
                if trailer_end < 0:
                    break
                self._buffer.clear()  # one request at a time: nothing follows the trailer
                self.done = True
            else:
                del self._buffer[: end + 2]
                self._left = size + 2
        return bytes(out)

    def close(self) -> None:
        """The peer closed.  WireError unless the body was complete."""
        if not self.done:
            raise WireError("the connection closed before the last chunk")


class Sized:
    """The same for a body of known length; `length` None: until the peer closes."""

    def __init__(self, length: int | None) -> None:
        self._left = length
        self.done = length == 0

    def feed(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self.done = self._left == 0
        return data

    def close(self) -> None:
        if self._left:
            raise WireError(f"the connection closed {self._left} bytes before the body's end")
        self.done = True


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: its data lines joined, or a comment (`: status queued 3`)."""

    data: bytes | None = None
    comment: bytes | None = None


class Events:
    """Split a byte stream into events.  LF and CRLF both end a line."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Event]:
        pending = self._buffer + data
        if pending.endswith(b"\r"):  # its LF may still be on the way
            self._buffer = pending
            return []
        *blocks, self._buffer = pending.replace(b"\r\n", b"\n").split(b"\n\n")
        events: list[Event] = []
        for block in blocks:
            lines: list[bytes] = []
            for line in block.split(b"\n"):
                if line.startswith(b":"):
                    events.append(Event(comment=line[1:].strip()))
                elif line.startswith(b"data:"):
                    lines.append(line[5:].removeprefix(b" "))
            if lines:
                events.append(Event(data=b"\n".join(lines)))
        return events
