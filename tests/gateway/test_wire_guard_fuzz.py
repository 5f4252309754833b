"""No smuggling: what the guard passes, h11 reads as the same requests with the same boundaries."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.wire_guard import Limits, Refusal, WireGuard

HEADERS = st.sampled_from(
    [
        b"Host: a:80",
        b"Content-Length: 4",
        b"Content-Length: 0",
        b"Content-Length: 04",
        b"content-length: 4, 4",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked ",
        b"Transfer-Encoding:\tchunked",
        b"transfer-encoding: identity",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"X: \xff",
        b" folded",
        b"X : y",
        b"",
    ]
)
LINES = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"POST / HTTP/1.1",
        b"POST /v1 HTTP/1.1",
        b"HEAD /a?b HTTP/1.1",
        b"CONNECT /a HTTP/1.1",
        b"GET / HTTP/1.0",
        b"PRI * HTTP/2.0",
    ]
)
BODIES = st.sampled_from(
    [
        b"",
        b"abcd",
        b"4\r\nabcd\r\n0\r\n\r\n",
        b"4\r\nGET \r\n0\r\n\r\n",
        b"4;x\r\nabcd\r\n0\r\n\r\n",
        b"4 \r\nabcd\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"2\r\nab\r\n2\r\ncd\r\n00\r\n\r\n",
        b"4\r\nabcdXX0\r\n\r\n",
        b"4\r\nabcdX\n0\r\n\r\n",
        b"4\r\nabcd\r\n0\r\nX\n",
    ]
)
NEWLINES = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    lines = [draw(LINES), *draw(st.lists(HEADERS, max_size=3)), b""]
    if draw(st.integers(0, 9)):
        lines.insert(1, b"Host: a")
    newlines = NEWLINES if draw(st.integers(0, 5)) == 0 else st.just(b"\r\n")
    return b"".join(line + draw(newlines) for line in lines) + draw(BODIES)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Requests back to back; some with bytes replaced, dropped or added."""
    stream = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=4))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(stream)))
        stream[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\x00", b"\r", b"\n", b"\r\n", b" ", b":", b"\xff", b"1"])
        )
    return bytes(stream)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


def read_by_h11(connection: h11.Connection, data: bytes) -> list[object]:
    connection.receive_data(data)
    events: list[object] = []
    while (event := connection.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
        events.append(event)
        if isinstance(event, h11.EndOfMessage):
            break
    return events


def check(parts: list[bytes]) -> None:
    guard = WireGuard(Limits())
    connection = h11.Connection(h11.SERVER)
    closing = False
    for part in parts:
        for verdict in guard.feed(part):
            if isinstance(verdict, Refusal):
                return
            if closing:
                return  # h11 closes after the answer: nothing more is read, and the adapter stops
            events = read_by_h11(connection, verdict.data)  # raises where h11 would refuse
            assert any(isinstance(event, h11.Request) for event in events) == verdict.starts
            assert any(isinstance(event, h11.EndOfMessage) for event in events) == verdict.ends
            assert connection.trailing_data[0] == b""
            if verdict.starts:
                (request,) = (event for event in events if isinstance(event, h11.Request))
                names = [name for name, _ in request.headers]
                assert names.count(b"host") == 1
                assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
            if verdict.ends:
                connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
                connection.send(h11.EndOfMessage())
                closing = connection.our_state is h11.MUST_CLOSE
                if not closing:
                    connection.start_next_cycle()


CUTS = st.lists(st.integers(0, 400), max_size=6)
FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SLOW = settings(FAST, max_examples=1500)


def verdicts(parts: list[bytes]) -> tuple[bytes, object]:
    guard, passed = WireGuard(Limits()), b""
    for part in parts:
        for verdict in guard.feed(part):
            if isinstance(verdict, Refusal):
                return passed, verdict
            passed += verdict.data + (b"|" if verdict.ends else b"")
    return passed, None


@FAST
@given(streams(), CUTS)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [60, 61, 62])
def test_whatever_passes_h11_reads_with_the_same_boundaries(
    stream: bytes, places: list[int]
) -> None:
    check(cut(stream, places))
    assert verdicts([stream]) == verdicts(cut(stream, places))  # however it was cut


@pytest.mark.slow
@SLOW
@given(streams(), CUTS)
def test_whatever_passes_h11_reads_with_the_same_boundaries_at_length(
    stream: bytes, places: list[int]
) -> None:
    check(cut(stream, places))
    assert verdicts([stream]) == verdicts(cut(stream, places))
