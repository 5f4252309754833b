"""`lockgate audit report verify`, and how the audits write what they found: signed where the key is here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.audit import Public, RootKey, keyring_of, public_of
from gateway.cli.audit_page import page
from gateway.cli.options import VAR, Json, StateDir
from gateway.cli.show import Refusal, document, instant, note, say
from security import audit_report
from security.timing_audit import Outcome

if TYPE_CHECKING:
    from security.audit_signer import Signer

EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 3}

Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the report [STATE_DIR/reports].")
]
reports = typer.Typer()


def about(target: str, model: str, seed: int, now_s: float) -> dict[str, Any]:
    return {
        "target": target,
        "model": model,
        "seed": seed,
        "made_at_ms": int(now_s * 1000),
        "lockgate": importlib.metadata.version("lockgate"),
    }


def finish(
    report: Mapping[str, Any],
    out: Path | None,
    root_key: Path | None,
    state_dir: Path,
    *,
    as_json: bool,
) -> None:
    """Write the report and its page, say the verdict, end with its exit code."""
    signer = _signer(root_key, state_dir)
    drawn = page(report)
    raw = audit_report.seal(report, drawn, signer)
    folder = out or state_dir / "reports"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = datetime.fromtimestamp(report["made_at_ms"] / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{report['kind']}-{stamp}.json"
    path.write_bytes(raw)
    path.with_suffix(".html").write_bytes(drawn)
    verdict = report["verdict"]
    if as_json:
        document({"verdict": verdict, "report": str(path), "signed": signer is not None})
    else:
        say(f"{verdict['outcome']}: {verdict['reason']}")
        say(f"{path} and {path.with_suffix('.html').name}: the report, and a page for people.")
    if signer is None:
        note("note: no root key here, so the report is not signed. Name one with --root-key.")
    raise typer.Exit(EXIT_CODES[Outcome(verdict["outcome"])])


@reports.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="The report's .json; its .html lies beside it.")],
    public_key: Public = None,
    root_key: RootKey = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Check that a report is whole, who signed it, and that its verdict follows from its measurements."""
    from security.audit_checkpoint import open_note

    try:
        raw = file.read_bytes()
        beside = file.with_suffix(".html")
        drawn = beside.read_bytes() if beside.exists() else None
        keyring = None if public_key is not None else keyring_of(root_key, state_dir)
        public = public_of(public_key, keyring)
        opens = None if public is None else partial(open_note, key=public)
        checked = audit_report.check(raw, drawn, opens)
    except audit_report.NotAReport as error:
        raise Refusal(f"{file}: {error}") from None
    if as_json:
        document({"file": str(file), "ok": checked.ok, **_plain(checked)})
    else:
        say(f"{file}: {checked.kind} audit of {instant(checked.made_at_ms // 1000)}.")
        for line in _said(checked, has_key=opens is not None):
            say(line)
        say(f"{checked.outcome}: {checked.reason}")
    raise typer.Exit(0 if checked.ok else 1)


def _signer(root_key: Path | None, state_dir: Path) -> Signer | None:
    """None where no key is here and none was named.  Makes none."""
    from security.audit_signer import Signer

    keyring = keyring_of(root_key, state_dir)
    return None if keyring is None else Signer.of(keyring)


def _plain(checked: audit_report.Checked) -> dict[str, Any]:
    return {
        "kind": checked.kind,
        "made_at_ms": checked.made_at_ms,
        "outcome": checked.outcome,
        "reason": checked.reason,
        "signed": checked.signed,
        "whole": checked.whole,
        "page": checked.page,
        "verdict": checked.verdict,
    }


def _said(checked: audit_report.Checked, *, has_key: bool) -> list[str]:
    signed = {
        True: "Signed by this key.",
        False: "NOT signed by this key.",
        None: "Nobody signed it." if has_key else "No key to check with: give --public-key.",
    }[checked.signed]
    drawn = {
        True: "The page is that of the report.",
        False: "The page was CHANGED.",
        None: "There is no page.",
    }
    return [
        signed,
        "Its measurements are as signed." if checked.whole else "Its measurements were CHANGED.",
        drawn[checked.page],
        "The verdict follows from them."
        if checked.verdict
        else "The verdict does NOT follow from them by this version's rules.",
    ]
