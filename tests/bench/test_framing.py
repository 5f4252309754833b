"""Framing gives the same pieces however the bytes are cut."""

import random

import pytest

from tests.bench.framing import Chunked, Event, Events, Sized, WireError

pytestmark = pytest.mark.slow  # a developer's tools; the whole run has them

BODY = b"5\r\nhello\r\n1;ext=1\r\n,\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
STREAM = b': status queued 1\n\ndata: {"a":1}\n\ndata: x\ndata: y\n\r\n: z\r\ndata: [DONE]\r\n\r\n'
EVENTS = [
    Event(comment=b"status queued 1"),
    Event(data=b'{"a":1}'),
    Event(data=b"x\ny"),
    Event(comment=b"z"),
    Event(data=b"[DONE]"),
]


def cuts(data: bytes, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    at = sorted(rng.choices(range(len(data)), k=rng.randrange(12)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(50))
def test_a_chunked_body_is_whole_however_it_is_cut(seed: int) -> None:
    body = Chunked()
    assert b"".join(body.feed(piece) for piece in cuts(BODY, seed)) == b"hello, world"
    assert body.done
    body.close()


def test_a_chunked_body_that_is_cut_short_is_an_error() -> None:
    body = Chunked()
    assert body.feed(BODY[:12]) == b"hello"
    with pytest.raises(WireError, match="last chunk"):
        body.close()


def test_a_size_that_is_no_number_is_an_error() -> None:
    with pytest.raises(WireError, match="hexadecimal"):
        Chunked().feed(b"zz\r\n")


def test_a_sized_body_ends_at_its_length_or_with_the_connection() -> None:
    sized, open_ended = Sized(3), Sized(None)
    assert sized.feed(b"ab") + sized.feed(b"cd") == b"abc"
    assert sized.done
    assert open_ended.feed(b"abcd") == b"abcd"
    assert not open_ended.done
    open_ended.close()
    assert open_ended.done
    with pytest.raises(WireError, match="2 bytes before"):
        Sized(2).close()


@pytest.mark.parametrize("seed", range(50))
def test_events_are_the_same_however_the_stream_is_cut(seed: int) -> None:
    parser = Events()
    assert [event for piece in cuts(STREAM, seed) for event in parser.feed(piece)] == EVENTS
