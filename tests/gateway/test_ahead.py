"""Random bytes drawn ahead: nobody has the same, and each has as many as asked."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from gateway.ahead import AHEAD_BYTES, Ahead


def test_what_is_taken_is_what_was_drawn_each_byte_once() -> None:
    drawn: list[bytes] = []

    def draw(count: int) -> bytes:
        drawn.append(os.urandom(count))
        return drawn[-1]

    ahead = Ahead(draw)
    taken = [ahead.take(24) for _ in range(2 * (AHEAD_BYTES // 24) + 1)]
    whole = [each[n : n + 24] for each in drawn for n in range(0, AHEAD_BYTES - 23, 24)]
    assert len(drawn) == 3
    assert taken == whole[: len(taken)]
    assert ahead.take(AHEAD_BYTES) == drawn[3]


def test_two_threads_never_have_the_same() -> None:
    ahead = Ahead()
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: ahead.hex(16), range(20_000)))
    assert len(set(taken)) == len(taken)
    assert {len(each) for each in taken} == {32}
