"""The byte guard, rule by rule, and in every cut of the stream."""

from __future__ import annotations

import pytest

from gateway.wire_guard import Fault, Limits, Pass, Refusal, WireGuard

LIMITS = Limits(
    request_line_bytes_max=64,
    header_bytes_max=200,
    headers_max=5,
    chunks_free=3,
    chunk_mean_bytes_min=4,
)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /v1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def head(*lines: bytes, line: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"\r\n".join([line, *lines, b"", b""])


def host_and(*lines: bytes) -> bytes:
    return head(b"Host: a", *lines)


def run(parts: list[bytes]) -> tuple[list[tuple[bytes, bool]], Refusal | None]:
    """Each request that was passed, joined, and whether it ended; and the refusal."""
    guard = WireGuard(LIMITS)
    requests: list[tuple[bytes, bool]] = []
    for part in parts:
        for verdict in guard.feed(part):
            if isinstance(verdict, Refusal):
                return requests, verdict
            if verdict.starts:
                requests.append((b"", False))
            requests[-1] = (requests[-1][0] + verdict.data, verdict.ends)
    return requests, None


REFUSED: list[tuple[bytes, Fault]] = [
    # W2: bare LF, in the request line, in a header, as the blank line
    (b"GET / HTTP/1.1\nHost: a\r\n\r\n", Fault.BARE_NEWLINE),
    (b"GET / HTTP/1.1\r\nHost: a\n\r\n", Fault.BARE_NEWLINE),
    (b"GET / HTTP/1.1\r\nHost: a\r\n\n", Fault.BARE_NEWLINE),
    (b"GET / HTTP/1.1\nHost: a\n\n", Fault.BARE_NEWLINE),
    # before the request line
    (b"\r\n" + GET, Fault.REQUEST_LINE),
    (b"\n" + GET, Fault.REQUEST_LINE),
    (b" " + GET, Fault.REQUEST_LINE),
    (b"\x16\x03\x01\x02\x00\x01\x00", Fault.REQUEST_LINE),  # TLS
    (b"\xef\xbb\xbf" + GET, Fault.REQUEST_LINE),
    (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", Fault.REQUEST_LINE),
    # the request line
    (head(b"Host: a", line=b"GET /"), Fault.REQUEST_LINE),  # HTTP/0.9
    (head(b"Host: a", line=b"GET  / HTTP/1.1"), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"GET\t/ HTTP/1.1"), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"GET / HTTP/1.1 "), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"GET / x HTTP/1.1"), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"GET / http/1.1"), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"GET / HTTP/1.1\r"), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"GEt / HTTP/1.1"), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"CONNECT / HTTP/1.1"), Fault.REQUEST_LINE),
    (head(b"Host: a", line=b"GET /" + b"a" * 80 + b" HTTP/1.1"), Fault.REQUEST_LINE_LONG),
    (b"G" * 80, Fault.REQUEST_LINE_LONG),
    (head(b"Host: a", line=b"GET / HTTP/1.0"), Fault.VERSION_OLD),
    (head(line=b"GET / HTTP/1.0"), Fault.VERSION_OLD),
    (head(b"Host: a", line=b"GET / HTTP/1.2"), Fault.VERSION),
    (head(b"Host: a", line=b"GET / HTTP/2"), Fault.VERSION),
    (head(b"Host: a", line=b"GET / HTTP/3.0"), Fault.VERSION),
    (head(b"Host: a", line=b"GET / HTTP/11.1"), Fault.REQUEST_LINE),
    # W10: HTTP/2 with prior knowledge, whole or only its first line
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Fault.VERSION),
    (b"PRI * HTTP/2.0\r\n", Fault.VERSION),
    (b"PRI * HTTP/1.1\r\n", Fault.TARGET),
    # targets: absolute, authority, asterisk, fragment, backslash, controls, not ASCII
    (head(b"Host: a", line=b"GET http://a/ HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET a:80 HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"OPTIONS * HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET /a#b HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET /a\\b HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET /\x00 HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET /\x7f HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET /\xc3\xa9 HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET /\x0b HTTP/1.1"), Fault.TARGET),
    (head(b"Host: a", line=b"GET  HTTP/1.1"), Fault.TARGET),
    # header lines
    (host_and(b"X: 1", b" folded"), Fault.HEADER),
    (host_and(b"X: 1", b"\tfolded"), Fault.HEADER),
    (head(b" Host: a"), Fault.HEADER),
    (head(b"Host : a"), Fault.HEADER),
    (head(b"Host\t: a"), Fault.HEADER),
    (host_and(b"no colon"), Fault.HEADER),
    (host_and(b": empty"), Fault.HEADER),
    (host_and(b"X(y): 1"), Fault.HEADER),
    (host_and(b"X\xe9: 1"), Fault.HEADER),
    (host_and(b"X: a\x00b"), Fault.HEADER),
    (host_and(b"X: a\rb"), Fault.HEADER),
    (host_and(b"X: a\r"), Fault.HEADER),
    (host_and(b"X: a\x0bb"), Fault.HEADER),
    (host_and(b"X: \x1b[31m"), Fault.HEADER),
    (host_and(b"X: \x7f"), Fault.HEADER),
    (host_and(b"X: " + b"a" * 300), Fault.HEADERS_LARGE),
    (host_and(b"X: " + b"a" * 150, b"Y: " + b"a" * 100), Fault.HEADERS_LARGE),
    (host_and(*(b"X%d: 1" % i for i in range(5))), Fault.HEADERS_MANY),
    # Host
    (head(b"X: 1"), Fault.HOST),
    (head(b"Host: a", b"Host: a"), Fault.HOST),
    (head(b"Host: a", b"hOST: b"), Fault.HOST),
    # upgrades
    (host_and(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings"), Fault.UPGRADE),
    (host_and(b"uPGRADE: websocket"), Fault.UPGRADE),
    (host_and(b"Connection: keep-alive,\tUPGRADE"), Fault.UPGRADE),
    (host_and(b"Connection: close", b"Connection: upgrade"), Fault.UPGRADE),
    (host_and(b"HTTP2-Settings: AAMAAABkAAQAAP__"), Fault.UPGRADE),
    # W1: lengths
    (host_and(b"Content-Length: 3", b"Transfer-Encoding: chunked"), Fault.AMBIGUOUS_LENGTH),
    (host_and(b"Transfer-Encoding: chunked", b"Content-Length: 0"), Fault.AMBIGUOUS_LENGTH),
    (host_and(b"Content-Length: 3", b"Content-Length: 4"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: 3", b"content-length: 3"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: 3, 3"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: +3"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: -3"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: 0x3"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: 3.0"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: 1_0"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length:"), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: " + b"9" * 16), Fault.CONTENT_LENGTH),
    (host_and(b"Content-Length: \xb2"), Fault.CONTENT_LENGTH),
    (host_and(b"Transfer-Encoding: Chunked"), Fault.TRANSFER_ENCODING),
    (host_and(b"Transfer-Encoding: chunked, chunked"), Fault.TRANSFER_ENCODING),
    (host_and(b"Transfer-Encoding: gzip, chunked"), Fault.TRANSFER_ENCODING),
    (host_and(b"Transfer-Encoding: identity"), Fault.TRANSFER_ENCODING),
    (host_and(b"Transfer-Encoding: xchunked"), Fault.TRANSFER_ENCODING),
    (host_and(b"Transfer-Encoding: chunked;q=1"), Fault.TRANSFER_ENCODING),
    (host_and(b'Transfer-Encoding: "chunked"'), Fault.TRANSFER_ENCODING),
    (host_and(b"Transfer-Encoding:"), Fault.TRANSFER_ENCODING),
    (host_and(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x"), Fault.TRANSFER_ENCODING),
    (
        host_and(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        Fault.TRANSFER_ENCODING,
    ),
    (host_and(b"Transfer-Encoding : chunked"), Fault.HEADER),
    (host_and(b"Transfer-Encoding\x00: chunked"), Fault.HEADER),
    # chunks
    (CHUNKED + b"3;ext=1\r\nabc\r\n", Fault.CHUNK_EXTENSION),
    (CHUNKED + b"3;a\r\nabc\r\n", Fault.CHUNK_EXTENSION),
    (CHUNKED + b"0;a\r\n\r\n", Fault.CHUNK_EXTENSION),
    (CHUNKED + b"3;" + b"e" * 500, Fault.CHUNK_EXTENSION),
    (CHUNKED + b"3 \r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b" 3\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"0x3\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"+3\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"-1\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"g\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"3\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"3\r\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"000000003\r\nabc\r\n", Fault.CHUNK),
    (CHUNKED + b"fffffffffffffffff\r\n", Fault.CHUNK),
    (CHUNKED + b"3\r\nabcd\r\n", Fault.CHUNK),
    (CHUNKED + b"3\r\nabc\n0\r\n\r\n", Fault.CHUNK),
    (CHUNKED + b"3\r\nabcXX0\r\n\r\n", Fault.CHUNK),  # h11 CVE-2025-43859
    (CHUNKED + b"3\r\nabc\rX0\r\n\r\n", Fault.CHUNK),
    (CHUNKED + b"0\r\n\n", Fault.CHUNK),
    (CHUNKED + b"0\r\n\rX", Fault.CHUNK),
    (CHUNKED + b"0\r\nTrailer: 1\r\n\r\n", Fault.TRAILERS),
    (CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n", Fault.TRAILERS),
    (CHUNKED + b"1\r\na\r\n" * 5 + b"0\r\n\r\n", Fault.CHUNKS_SMALL),
    # behind a good request
    (GET + b"\r\n" + GET, Fault.REQUEST_LINE),
    (POST + b"xx" + GET, Fault.REQUEST_LINE),
    (POST + head(b"Host : a"), Fault.HEADER),
]

PASSED: list[tuple[bytes, list[bytes]]] = [
    (GET, [GET]),
    (GET * 3, [GET] * 3),
    (POST, [POST]),
    (POST + GET + POST, [POST, GET, POST]),
    (CHUNKED + b"0\r\n\r\n" + GET, [CHUNKED + b"0\r\n\r\n", GET]),
    (CHUNKED + b"A\r\n0123456789\r\n000\r\n\r\n", [CHUNKED + b"A\r\n0123456789\r\n000\r\n\r\n"]),
    (CHUNKED + b"2\r\n\r\n\r\n0\r\n\r\n", [CHUNKED + b"2\r\n\r\n\r\n0\r\n\r\n"]),
]
WELL = [
    host_and(b"X:"),
    host_and(b"X:\t 1 \t"),
    host_and(b"X: \xc3\xa9"),
    host_and(b"x!#$%&'*+-.^_`|~9: 1"),
    host_and(b"TE: trailers", b"Connection: close, TE"),
    host_and(b"Content-Length: 0"),
    host_and(b"Content-Length: 000"),
    head(b"Host:"),
    head(b"Host: a", line=b"DELETE /a/b?c=d%20{}|e HTTP/1.1"),
    head(
        b"Host: a", line=b"GET //a/../%2f;x HTTP/1.1"
    ),  # what a path means is the guard's question
    head(b"Host: a", line=b"GET /" + b"a" * 50 + b" HTTP/1.1"),
]


def cuts(stream: bytes) -> list[list[bytes]]:
    """Whole, byte by byte, and cut in two at every place."""
    halves = [[stream[:at], stream[at:]] for at in range(1, len(stream))]
    return [[stream], [bytes([byte]) for byte in stream], *halves]


@pytest.mark.parametrize(("stream", "fault"), REFUSED)
def test_what_two_readers_could_read_differently_is_refused_in_every_cut(
    stream: bytes, fault: Fault
) -> None:
    whole = run([stream])
    assert whole[1] is not None
    assert whole[1].fault is fault
    for parts in cuts(stream):
        assert run(parts) == whole


@pytest.mark.parametrize(("stream", "requests"), (*PASSED, *((one, [one]) for one in WELL)))
def test_good_requests_pass_unchanged_and_are_told_apart_in_every_cut(
    stream: bytes, requests: list[bytes]
) -> None:
    for parts in cuts(stream):
        assert run(parts) == ([(one, True) for one in requests], None)


def test_a_head_is_held_back_until_it_is_whole() -> None:
    guard = WireGuard(LIMITS)
    assert guard.feed(b"") == []
    assert not guard.in_head
    assert guard.feed(POST[:20]) == []
    assert guard.in_head
    assert guard.feed(POST[20:-3]) == [Pass(POST[:-3], starts=True, ends=False)]
    assert not guard.in_head
    assert guard.feed(b"ab") == [Pass(b"ab", starts=False, ends=False)]
    assert guard.feed(b"c") == [Pass(b"c", starts=False, ends=True)]


def test_a_refusal_says_whether_a_request_was_under_way() -> None:
    in_head = run([GET + b"\n"])[1]
    in_body = run([CHUNKED + b"x\r\n"])[1]
    assert in_head is not None
    assert in_body is not None
    assert (in_head.starts, in_body.starts) == (True, False)


def test_many_small_chunks_are_one_piece() -> None:
    chunks = b"10\r\n0123456789abcdef\r\n" * 50 + b"0\r\n\r\n"
    assert WireGuard(LIMITS).feed(CHUNKED + chunks) == [
        Pass(CHUNKED + chunks, starts=True, ends=True)
    ]


def test_header_limits_hold_exactly() -> None:
    guard = WireGuard(Limits())
    hundred = host_and(*(b"X: 1" for _ in range(99)))
    assert guard.feed(hundred) == [Pass(hundred, starts=True, ends=True)]
    (refusal,) = WireGuard(Limits()).feed(host_and(*(b"X: 1" for _ in range(100))))
    assert refusal == Refusal(Fault.HEADERS_MANY, starts=True)
    (refusal,) = WireGuard(Limits()).feed(host_and(b"X: " + b"a" * 20_000))
    assert refusal == Refusal(Fault.HEADERS_LARGE, starts=True)


@pytest.mark.parametrize("fault", list(Fault))
def test_each_fault_has_an_answer_in_the_openai_shape_that_closes(fault: Fault) -> None:
    answer = Refusal(fault, starts=True).response("req_1")
    start, _, body = answer.partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 ")
    assert b"connection: close" in start
    assert b"x-request-id: req_1" in start
    assert f"content-length: {len(body)}".encode() in start
    assert fault.value.encode() in body
    assert set(body.split(b'"')) >= {b"message", b"type", b"param", b"code"}
