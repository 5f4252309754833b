from __future__ import annotations

import pytest

from executor.contract import Grammar, GrammarKind
from executor.grammar.frames import (
    FRAME_BYTES_MAX,
    Alive,
    Compile,
    FrameError,
    Frames,
    Mask,
    Next,
    Refused,
    encode,
    order,
    word,
)

ORDERS = (Compile(Grammar(kind=GrammarKind.REGEX, text="a|ç")), Next(7))
WORDS = (Alive(), Mask(b"\x05\x00"), Refused("no"))


@pytest.mark.parametrize("piece_bytes", (1, 3, 1000))
def test_a_stream_cut_anywhere_gives_the_same_messages(piece_bytes: int) -> None:
    stream = b"".join(encode(each) for each in (*ORDERS, *WORDS))
    frames, found = Frames(), []
    for at in range(0, len(stream), piece_bytes):
        found += frames.feed(stream[at : at + piece_bytes])
    assert [*map(order, found[:2]), *map(word, found[2:])] == [*ORDERS, *WORDS]


def test_what_is_no_message_is_refused() -> None:
    for read in (order, word):
        for body in (b"", b"\xc1", b"\x81\xa4type\xa3eat", b"\xc0"):
            with pytest.raises(FrameError):
                read(body)
    with pytest.raises(FrameError):
        order(encode(Alive())[4:])


def test_a_frame_over_the_bound_is_refused_before_it_is_held() -> None:
    with pytest.raises(FrameError, match="over the bound"):
        Frames().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
