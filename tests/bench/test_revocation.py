"""The bench of revocations says what it counted, and what is later than promised."""

from __future__ import annotations

from dataclasses import replace

from tests.bench.revocation import Seen, row
from tests.bench.revocation_command import WITH, WITHOUT, judged, table

SEEN = (Seen(0.1, 0.2, told=True), Seen(0.3, 0.0, told=True), Seen(0.2, 0.9, told=True))


def test_a_row_is_the_middle_and_the_worst() -> None:
    found = row("API key", SEEN)
    assert (found.refused_p50_s, found.refused_max_s) == (0.2, 0.3)
    assert (found.ended_p50_s, found.ended_max_s, found.worst_s) == (0.2, 0.9, 0.9)
    head, cells = table({WITH: [found]})
    assert len(head) == len(cells)
    assert cells[:3] == (WITH, "API key", "3")


def test_what_is_later_than_promised_is_said_and_so_is_a_stream_that_says_nothing() -> None:
    good = row("token", SEEN)
    assert judged({WITH: [good], WITHOUT: [replace(good, ended_max_s=4.9)]}) == []
    late, silent = replace(good, refused_max_s=1.1), replace(good, untold=1)
    (first, second, third) = judged(
        {WITH: [late, silent], WITHOUT: [replace(late, ended_max_s=5.1)]}
    )
    assert "1.10 s" in first
    assert "1 streams" in second
    assert "5.10 s" in third
