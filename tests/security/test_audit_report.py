"""A report of an audit shows whatever was changed in it, and draws all that was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gateway.cli.audit_page import page
from security.audit_checkpoint import open_note
from security.audit_report import (
    NotAReport,
    canonical,
    check,
    isolation_report,
    seal,
    timing_report,
)
from security.audit_signer import Signer
from security.isolation_audit import Half, Result
from security.timing_audit import CellName, Design, Level, Outcome, Pair, judge
from tests.security.timing_noise import MACHINE

SIGNER = Signer.from_seed(b"s" * 32, "lockgate-audit/test")
OPENS = partial(open_note, key=SIGNER.public)
ABOUT = {
    "target": "http://127.0.0.1:1/<b>&",
    "model": "</style><script>alert(1)</script>",
    "seed": 2**62 + 1,
    "made_at_ms": 1_796_000_000_000,
    "lockgate": "0",
}
DESIGN = Design(
    pairs=40, levels=(Level.SAME_USER, Level.CROSS_TENANT), victims=(1,), prefix_tokens=64, seed=1
)
Report = dict[str, Any]


def timing(stopped: str | None = None) -> Report:
    samples = {
        name: MACHINE.pairs(40, 40.0 * (name.level is Level.SAME_USER), seed=at)
        for at, name in enumerate(DESIGN.cells)
    }
    verdict = judge(DESIGN, samples, stopped=stopped)
    return timing_report(DESIGN, samples, verdict, {**ABOUT, "stopped": stopped})


def isolation() -> Report:
    half = Half(says="one <i>", tried=2, reused=2)
    rows = (
        Result(dimension="user", same=half, other=replace(half, reused=1)),
        Result(dimension="document", remark="none <here>"),
        Result(dimension="locale", held_by="tests/x.py"),
    )
    return isolation_report(rows, ABOUT)


@pytest.mark.parametrize("made", (timing, partial(timing, "stopped"), isolation))
def test_a_sealed_report_is_whole_and_its_verdict_follows(made: Callable[[], Report]) -> None:
    report = made()
    drawn = page(report)
    checked = check(seal(report, drawn, SIGNER), drawn, OPENS)
    assert checked.ok
    assert checked.outcome == report["verdict"]["outcome"]
    assert (checked.signed, checked.whole, checked.page, checked.verdict) == (True,) * 4


def test_who_has_no_key_or_no_page_is_told_so() -> None:
    report = timing()
    raw = seal(report, page(report), SIGNER)
    assert check(raw, None, None).signed is None
    assert check(raw, None, OPENS).page is None
    assert check(raw, None, OPENS).ok
    unsigned = check(seal(report, b"", None), b"", OPENS)
    assert (unsigned.signed, unsigned.whole, unsigned.ok) == (None, True, False)
    other = partial(open_note, key=Signer.from_seed(b"o" * 32, "lockgate-audit/test").public)
    assert check(raw, None, other).signed is False


def change_a_time(envelope: Any) -> None:
    envelope["report"]["samples"]["cross-tenant/1"][3][0] += 1


def change_the_seed(envelope: Any) -> None:
    envelope["report"]["seed"] += 1


def change_the_verdict(envelope: Any) -> None:
    envelope["report"]["verdict"]["outcome"] = "PASS"


def change_the_digest(envelope: Any) -> None:
    lines = envelope["note"].split("\n")
    lines[1] = lines[2]
    envelope["note"] = "\n".join(lines)


@pytest.mark.parametrize(
    ("change", "fails"),
    (
        (change_a_time, {"whole"}),
        (change_the_seed, {"whole"}),
        (change_the_verdict, {"whole", "verdict"}),
        (change_the_digest, {"whole", "signed"}),
    ),
)
def test_each_change_is_seen(change: Callable[[Any], None], fails: set[str]) -> None:
    report = timing()
    envelope = json.loads(seal(report, b"p", SIGNER))
    change(envelope)
    checked = check(canonical(envelope) + b"\n", b"p", OPENS)
    assert fails <= {name for name in ("whole", "signed", "verdict") if not getattr(checked, name)}
    assert not checked.ok


def test_a_verdict_that_does_not_follow_is_seen_though_it_was_signed() -> None:
    report = timing()
    report["verdict"]["outcome"] = "PASS"
    checked = check(seal(report, b"p", SIGNER), b"p", OPENS)
    assert (checked.signed, checked.whole, checked.verdict, checked.ok) == (
        True,
        True,
        False,
        False,
    )


@pytest.mark.parametrize(
    "raw",
    (
        b"",
        b"{}",
        b"[]",
        b'{"note":"x","report":{}}',
        b"\xff",
        b"[" * 100_000,
        b'{"note":1,"report":2}',
    ),
)
def test_what_is_no_report_is_refused(raw: bytes) -> None:
    with pytest.raises(NotAReport):
        check(raw, None, OPENS)


def test_another_writing_of_the_same_report_is_refused() -> None:
    raw = seal(timing(), b"", SIGNER)
    with pytest.raises(NotAReport):
        check(raw.replace(b'","report"', b'", "report"'), None, OPENS)


@pytest.mark.parametrize("made", (timing, isolation))
def test_a_page_loads_nothing_runs_nothing_and_shows_what_came_as_text(
    made: Callable[[], Report],
) -> None:
    report = made()
    text = page(report).decode()
    assert text == page(report).decode(), "its digest is signed"
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|\bon\w+=|(src|href)=", text)
    assert "</style><script>" not in text
    assert "<b>&" not in text
    assert "<i>" not in text
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text
    assert report["verdict"]["outcome"] in text


def test_every_cell_is_drawn_twice() -> None:
    text = page(timing()).decode()
    for name in DESIGN.cells:
        assert f"<h3>{name}</h3>" in text
    assert text.count("<svg") == 2 * len(DESIGN.cells)
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_samples_of_one_value_are_drawn_too() -> None:
    samples = {CellName(Level.FRESH, 0): [Pair(5, 5)]}
    report = timing_report(DESIGN, samples, judge(DESIGN, samples), {**ABOUT, "stopped": None})
    assert report["verdict"]["outcome"] == Outcome.INCONCLUSIVE
    assert b"<svg" in page(report)
