"""Reports of the audits as files that a reviewer can check: canonical JSON under a signed note.

    {"note": <note>, "report": {…}}

where the note's lines are

    lockgate/report/<kind>
    <SHA-256 of the report, base64>
    <SHA-256 of its page>
    time <milliseconds>
    <empty line>
    — <key name> <signature>

The report holds every measured pair, so that whoever doubts a verdict judges again (`judged_again`); the
page beside it, for people, is bound by its digest.  Refuses to know how a page looks and which key signs.
Source: C2SP signed-note; RFC 8785 in spirit (members sorted, no white space, no NaN).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from security import isolation_audit, timing_audit
from security.timing_audit import CellName, Design, Level, Outcome, Pair, Verdict

ORIGIN: Final = "lockgate/report/"
REPORT_BYTES_MAX: Final = 256 << 20
_TEXT = re.compile(
    r"lockgate/report/([a-z]{1,32})\n([A-Za-z0-9+/]{43}=)\n([A-Za-z0-9+/]{43}=)\ntime ([0-9]{1,16})\n"
)


class Kind(StrEnum):
    TIMING = "timing"
    ISOLATION = "isolation"


class Signer(Protocol):
    """Who signs whole notes (`audit_signer`)."""

    def note(self, text: str) -> str: ...


OpenNote = Callable[[str], str | None]
"""The text of a note whose signature holds; None for any other."""


class NotAReport(Exception):
    """The message says what it is instead."""


def timing_report(
    design: Design, samples: timing_audit.Samples, verdict: Verdict, about: Mapping[str, Any]
) -> dict[str, Any]:
    """`about`: where, when, with which version; `stopped`, if it was."""
    return {
        **about,
        "kind": Kind.TIMING.value,
        "design": msgspec.to_builtins(design),
        "samples": {str(name): [list(pair) for pair in pairs] for name, pairs in samples.items()},
        "verdict": msgspec.to_builtins(verdict),
    }


def isolation_report(
    rows: tuple[isolation_audit.Result, ...], about: Mapping[str, Any]
) -> dict[str, Any]:
    outcome, reason = isolation_audit.judge(rows)
    return {
        **about,
        "kind": Kind.ISOLATION.value,
        "rows": msgspec.to_builtins(rows),
        "states": [row.state.value for row in rows],
        "verdict": {"outcome": outcome.value, "reason": reason},
    }


def canonical(value: object) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def seal(report: Mapping[str, Any], page: bytes, signer: Signer | None) -> bytes:
    """The file.  Without a signer it says only what it is the digest of."""
    text = (
        f"{ORIGIN}{report['kind']}\n{_digest(canonical(report))}\n{_digest(page)}\n"
        f"time {report['made_at_ms']}\n"
    )
    note = signer.note(text) if signer is not None else text + "\n"
    return canonical({"note": note, "report": report}) + b"\n"


@dataclass(frozen=True, slots=True)
class Checked:
    """What holds of a file.  `signed` None: no key to check with, or nobody signed.  `page` None: there is
    none beside it.  `verdict`: it follows from the report's own measurements."""

    kind: Kind
    made_at_ms: int
    outcome: Outcome
    reason: str
    signed: bool | None
    whole: bool
    page: bool | None
    verdict: bool

    @property
    def ok(self) -> bool:
        return self.whole and self.verdict and self.signed is True and self.page is not False


def check(raw: bytes, page: bytes | None, opens: OpenNote | None) -> Checked:
    """Raises NotAReport.  `opens` None: there is no key."""
    try:
        envelope = json.loads(raw)
        note, report = envelope["note"], envelope["report"]
        text = note.partition("\n\n")[0] + "\n"
        match = _TEXT.fullmatch(text)
        if match is None or canonical(envelope) + b"\n" != raw:
            raise NotAReport("It is no report of an audit, or was written anew since.")
        again = judged_again(report)
        kind, stated = Kind(match[1]), report["verdict"]
        whole = (
            _digest(canonical(report)) == match[2]
            and report["kind"] == kind.value
            and report["made_at_ms"] == int(match[4])
        )
        signed = None if opens is None or note == text + "\n" else opens(note) == text
        return Checked(
            kind=kind,
            made_at_ms=int(match[4]),
            outcome=Outcome(stated["outcome"]),
            reason=str(stated["reason"]),
            signed=signed,
            whole=whole,
            page=None if page is None else _digest(page) == match[3],
            verdict=canonical(again) == canonical(stated),
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise NotAReport("It is no report of an audit.") from error


def judged_again(report: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict that a report's measurements give, by this version's rules."""
    if report["kind"] == Kind.ISOLATION.value:
        rows = msgspec.convert(report["rows"], tuple[isolation_audit.Result, ...])
        outcome, reason = isolation_audit.judge(rows)
        return {"outcome": outcome.value, "reason": reason}
    design = msgspec.convert(report["design"], Design)
    verdict = timing_audit.judge(design, samples_of(report), stopped=report["stopped"])
    built: dict[str, Any] = msgspec.to_builtins(verdict)
    return built


def samples_of(report: Mapping[str, Any]) -> dict[CellName, list[Pair]]:
    found = {}
    for name, pairs in report["samples"].items():
        level, _, victims = name.partition("/")
        found[CellName(Level(level), int(victims or 0))] = [Pair(*pair) for pair in pairs]
    return found


def _digest(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()
