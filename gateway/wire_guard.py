"""Every byte of HTTP/1.1 is judged here before h11 sees it: what two readers could read differently
never passes.

A pure state machine (sans-I/O, after h11): `WireGuard.feed(bytes)` gives what may go on, marked with
where requests start and end, or one `Refusal` after which nothing passes.  The verdicts depend on the
bytes only, never on how they were cut into segments.
Refuses to know: sockets, clocks, h11, hosts, routes, bodies' meaning.

Theory of operation.  A head is held back until it is whole and has been accepted, then passes in one
piece.  Of a body each part passes as it comes; a chunk's size line only when whole.  Each rule fires
at the first byte that breaks it or at the end of its line, whichever the rule needs; since both are
positions in the stream, cutting the stream elsewhere changes nothing.
What passes, h11 reads with the same boundaries: `tests/gateway/test_wire_guard_fuzz.py`.
Source: RFC 9112, SECURITY.md §0 and §4 (W1, W2, W10), DESIGN.md settled question 12.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from http import HTTPStatus
from types import MappingProxyType
from typing import assert_never

import msgspec


@dataclass(frozen=True, slots=True)
class Limits:
    request_line_bytes_max: int = 8 * 1024
    header_bytes_max: int = 16 * 1024
    headers_max: int = 100
    chunks_free: int = 1024
    chunk_mean_bytes_min: int = 64
    """After `chunks_free` chunks their mean must be this: a one-byte chunk costs us far more than it
    costs its sender."""


class Fault(StrEnum):
    """Why bytes were refused: for metrics and the audit log, and the `code` the sender sees."""

    BARE_NEWLINE = "bare_newline"
    REQUEST_LINE = "malformed_request_line"
    REQUEST_LINE_LONG = "request_line_too_long"
    VERSION_OLD = "http_version_too_old"
    VERSION = "http_version_not_supported"
    TARGET = "malformed_target"
    HEADER = "malformed_header"
    HEADERS_LARGE = "headers_too_large"
    HEADERS_MANY = "too_many_headers"
    HOST = "host_not_once"
    UPGRADE = "upgrade_not_supported"
    CONTENT_LENGTH = "malformed_content_length"
    TRANSFER_ENCODING = "transfer_encoding_not_supported"
    AMBIGUOUS_LENGTH = "ambiguous_length"
    CHUNK = "malformed_chunk"
    CHUNK_EXTENSION = "chunk_extension"
    CHUNKS_SMALL = "chunks_too_small"
    TRAILERS = "trailers_not_supported"
    HEAD_SLOW = "headers_too_slow"
    CONNECTIONS = "too_many_connections"
    DRAINING = "draining"


_WORDING: Mapping[Fault, tuple[int, str]] = MappingProxyType(
    {
        Fault.BARE_NEWLINE: (400, "A line ends in LF alone; lines end in CR LF."),
        Fault.REQUEST_LINE: (400, "The request line is not 'METHOD /path HTTP/1.1' in ASCII."),
        Fault.REQUEST_LINE_LONG: (414, "The request line is too long."),
        Fault.VERSION_OLD: (400, "HTTP/1.0 is not served; use HTTP/1.1."),
        Fault.VERSION: (505, "Only HTTP/1.1 is served."),
        Fault.TARGET: (400, "The request target must be a path that begins with '/'."),
        Fault.HEADER: (
            400,
            "A header line is not 'name: value' on one line without control bytes.",
        ),
        Fault.HEADERS_LARGE: (431, "The headers are too large."),
        Fault.HEADERS_MANY: (431, "There are too many headers."),
        Fault.HOST: (400, "Exactly one Host header is needed."),
        Fault.UPGRADE: (400, "No protocol upgrade is offered; send plain HTTP/1.1."),
        Fault.CONTENT_LENGTH: (400, "Content-Length must stand once, as a decimal number."),
        Fault.TRANSFER_ENCODING: (501, "The only Transfer-Encoding served is exactly 'chunked'."),
        Fault.AMBIGUOUS_LENGTH: (400, "Send Content-Length or Transfer-Encoding, not both."),
        Fault.CHUNK: (400, "A chunk of the body is malformed."),
        Fault.CHUNK_EXTENSION: (400, "Chunk extensions are not accepted."),
        Fault.CHUNKS_SMALL: (400, "The body comes in too many tiny chunks; send larger ones."),
        Fault.TRAILERS: (400, "Trailers after a chunked body are not accepted."),
        Fault.HEAD_SLOW: (408, "The request's headers did not arrive in time."),
        Fault.CONNECTIONS: (503, "Too many connections are open; try again shortly."),
        Fault.DRAINING: (503, "This server is shutting down. Try again."),
    }
)


@dataclass(frozen=True, slots=True)
class Pass:
    """Bytes that h11 may see.  `starts`: they begin a request.  `ends`: they complete one."""

    data: bytes
    starts: bool
    ends: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """`starts`: the fault lies in a head, so that no request is under way for these bytes."""

    fault: Fault
    starts: bool

    @property
    def status(self) -> int:
        return _WORDING[self.fault][0]

    @property
    def message(self) -> str:
        return _WORDING[self.fault][1]

    def response(self, request_id: str | None) -> bytes:
        """The whole HTTP answer, after which the connection is to be closed."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "overloaded_error" if self.status == 503 else kind
        body = msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": kind,
                    "param": None,
                    "code": self.fault.value,
                }
            }
        )
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "connection: close",
        ]
        if request_id is not None:
            lines.append(f"x-request-id: {request_id}")
        if self.status == 503:
            lines.append("retry-after: 1")
        return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()  # inside a body of known length
    CHUNK_LINE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()  # the CR LF that closes a chunk
    LAST_END = auto()  # the CR LF that closes the body
    REFUSED = auto()


class WireGuard:
    """One connection's bytes.  After a `Refusal` it must not be fed again."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._state = _State.HEAD
        self._buffer = bytearray()
        self._searched = 0  # bytes of `_buffer` known to hold no newline
        self._remaining = 0  # of the body or chunk
        self._chunks = 0
        self._chunk_bytes = 0
        self._start_head()

    @property
    def in_head(self) -> bool:
        """Part of a head has come and the rest is awaited."""
        return self._state is _State.HEAD and bool(self._head or self._buffer)

    def feed(self, data: bytes) -> list[Pass | Refusal]:
        assert self._state is not _State.REFUSED
        self._buffer += data
        verdicts: list[Pass | Refusal] = []
        while (verdict := self._step()) is not None:
            if isinstance(verdict, Refusal):
                self._state = _State.REFUSED
                self._buffer.clear()
                verdicts.append(verdict)
                break
            verdicts.append(verdict)
        return _joined(verdicts)

    def _step(self) -> Pass | Refusal | None:
        match self._state:
            case _State.HEAD:
                return self._step_head()
            case _State.LENGTH | _State.CHUNK_DATA:
                return self._step_data()
            case _State.CHUNK_LINE:
                return self._step_chunk_line()
            case _State.CHUNK_END | _State.LAST_END:
                return self._step_line_end()
            case _State.REFUSED:
                return None
            case _:
                assert_never(self._state)

    def _start_head(self) -> None:
        self._state = _State.HEAD
        self._head = bytearray()
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._chunks = self._chunk_bytes = 0

    def _step_head(self) -> Pass | Refusal | None:
        while self._buffer:
            first = not self._head
            if first and not _is_upper(self._buffer[0]):
                return Refusal(Fault.REQUEST_LINE, starts=True)  # also TLS, and a stray newline
            room = (
                self._limits.request_line_bytes_max
                if first
                else self._limits.header_bytes_max - self._header_bytes
            )
            newline = self._buffer.find(b"\n", self._searched)
            length = newline + 1 if newline >= 0 else len(self._buffer)
            if length > room + 2:
                fault = Fault.REQUEST_LINE_LONG if first else Fault.HEADERS_LARGE
                return Refusal(fault, starts=True)
            if newline < 0:
                self._searched = len(self._buffer)
                return None
            line = self._take(newline + 1)
            if not line.endswith(b"\r\n"):
                return Refusal(Fault.BARE_NEWLINE, starts=True)
            self._head += line
            if first:
                fault_found = _judge_request_line(line[:-2])
            elif line != b"\r\n":
                self._header_bytes += len(line)
                fault_found = self._judge_header(line[:-2])
            else:
                return self._end_head()
            if fault_found is not None:
                return Refusal(fault_found, starts=True)
        return None

    def _judge_header(self, line: bytes) -> Fault | None:
        match = _HEADER.fullmatch(line)
        if match is None:
            return Fault.HEADER
        if len(self._headers) == self._limits.headers_max:
            return Fault.HEADERS_MANY
        self._headers.append((match[1].lower(), match[2].strip(b" \t")))
        return None

    def _end_head(self) -> Pass | Refusal:
        framing = _framing(self._headers)
        if isinstance(framing, Fault):
            return Refusal(framing, starts=True)
        head = bytes(self._head)
        self._start_head()
        if framing is None:
            self._state = _State.CHUNK_LINE
        elif framing > 0:
            self._state, self._remaining = _State.LENGTH, framing
        return Pass(head, starts=True, ends=framing == 0)

    def _step_data(self) -> Pass | None:
        if not self._buffer:
            return None
        data = self._take(min(self._remaining, len(self._buffer)))
        self._remaining -= len(data)
        chunked = self._state is _State.CHUNK_DATA
        if self._remaining == 0:
            self._state = _State.CHUNK_END if chunked else _State.HEAD
        return Pass(data, starts=False, ends=self._remaining == 0 and not chunked)

    def _step_chunk_line(self) -> Pass | Refusal | None:
        """`1*8HEXDIG CRLF` and nothing else: h11 would skip blanks and extensions, others do not."""
        window = bytes(self._buffer[:_CHUNK_LINE_BYTES])
        newline = window.find(b"\n")
        if newline < 0 and len(window) < _CHUNK_LINE_BYTES:
            return None
        match = _CHUNK_LINE.fullmatch(window[: newline + 1])
        if match is None:
            extended = b";" in window[: newline + 1 or None]
            return Refusal(Fault.CHUNK_EXTENSION if extended else Fault.CHUNK, starts=False)
        size = int(match[1], 16)
        if size > 0 and self._chunks_too_small(size):
            return Refusal(Fault.CHUNKS_SMALL, starts=False)
        self._remaining = size
        self._state = _State.CHUNK_DATA if size else _State.LAST_END
        return Pass(self._take(newline + 1), starts=False, ends=False)

    def _chunks_too_small(self, size: int) -> bool:
        self._chunks += 1
        self._chunk_bytes += size
        paid_for = self._chunk_bytes // self._limits.chunk_mean_bytes_min
        return self._chunks > self._limits.chunks_free + paid_for

    def _step_line_end(self) -> Pass | Refusal | None:
        window = bytes(self._buffer[:2])
        last = self._state is _State.LAST_END
        if window == b"\r\n":
            self._state = _State.HEAD if last else _State.CHUNK_LINE
            return Pass(self._take(2), starts=False, ends=last)
        if window in {b"", b"\r"}:
            return None
        trailers = last and not window.startswith((b"\r", b"\n"))
        return Refusal(Fault.TRAILERS if trailers else Fault.CHUNK, starts=False)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._searched = 0
        return data


_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_HEADER = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")
"""A folded line has no name, and a blank before the colon is no token: neither matches."""
_METHOD = re.compile(rb"[A-Z]{1,16}")
_TARGET = re.compile(rb"/[\x21\x22\x24-\x5b\x5d-\x7e]*")  # no '#', no '\': some read them as '/'
_VERSION = re.compile(rb"HTTP/[0-9](?:\.[0-9])?")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_CHUNK_LINE_BYTES = 10


def _is_upper(byte: int) -> bool:
    return 0x41 <= byte <= 0x5A


def _judge_request_line(line: bytes) -> Fault | None:
    parts = line.split(b" ")
    if len(parts) != 3:
        return Fault.REQUEST_LINE
    method, target, version = parts
    if version == b"HTTP/1.0":
        return Fault.VERSION_OLD
    if version != b"HTTP/1.1":
        return Fault.VERSION if _VERSION.fullmatch(version) else Fault.REQUEST_LINE
    if _METHOD.fullmatch(method) is None or method == b"CONNECT":
        return Fault.REQUEST_LINE  # after CONNECT h11 would stop reading HTTP
    return None if _TARGET.fullmatch(target) else Fault.TARGET


def _framing(headers: list[tuple[bytes, bytes]]) -> int | Fault | None:
    """How many bytes of body follow; None: chunks do."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    if len(values.get(b"host", ())) != 1:
        return Fault.HOST
    options = b",".join(values.get(b"connection", ())).lower().split(b",")
    if (
        b"upgrade" in values
        or b"http2-settings" in values
        or b"upgrade" in (option.strip(b" \t") for option in options)
    ):
        return Fault.UPGRADE
    lengths = values.get(b"content-length", [])
    codings = values.get(b"transfer-encoding", [])
    if lengths and codings:
        return Fault.AMBIGUOUS_LENGTH
    if codings:
        return None if codings == [b"chunked"] else Fault.TRANSFER_ENCODING
    if not lengths:
        return 0
    if len(lengths) != 1 or _LENGTH.fullmatch(lengths[0]) is None:
        return Fault.CONTENT_LENGTH
    return int(lengths[0])


def _joined(verdicts: list[Pass | Refusal]) -> list[Pass | Refusal]:
    """Parts of one request become one piece: a thousand small chunks are one call to h11, not three
    thousand."""
    joined: list[Pass | Refusal] = []
    run: list[Pass] = []

    def close() -> None:
        if run:
            data = b"".join(part.data for part in run)
            joined.append(Pass(data, starts=run[0].starts, ends=run[-1].ends))
            run.clear()

    for verdict in verdicts:
        if isinstance(verdict, Refusal):
            close()
            joined.append(verdict)
            continue
        run.append(verdict)
        if verdict.ends:
            close()
    close()
    return joined
