"""`lockgate usage`: what was used and what it cost, for people, for finance tools, and closed for ever."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.client import LONG_S, Server, connect, segment
from gateway.cli.credentials import rows_of
from gateway.cli.invoice import compared, read_invoice
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.show import Refusal, document, note, pairs, say, table

usage = typer.Typer()

PAGES_MOST = 100
TABLES_OWN = ("", "total", "–")  # noqa: RUF001 — a dash for nothing
"""What cells say that are nobody's values."""
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,250}")

Since = Annotated[str | None, typer.Option("--from", help="First day, such as 2026-11-01.")]
Until = Annotated[str | None, typer.Option("--to", help="Day after the last.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")]
Period = Annotated[str, typer.Option("--period", help="The month, such as 2026-10.")]


@usage.command("report")
def report(
    by: Annotated[
        str,
        typer.Option(
            help="Group by these: tenant, project, user, key, model, class, meter, price, request, "
            "minute, hour, day, month, tag:NAME."
        ),
    ] = "tenant,user",
    since: Since = None,
    until: Until = None,
    tenant: OfTenant = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            help="Of this tag only, such as team=search, or team= for what has none of that name; may be "
            "given several times."
        ),
    ] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Tokens and price by tenant and user; every grouping comes to the same total."""
    server = connect(admin_url, token, state_dir)
    asked: dict[str, object] = {"by": by, "from": since, "to": until, "tenant": tenant}
    asked |= _tagged(tag)
    found = server.get("/v1/admin/usage", asked)
    rows = rows_of(found, "rows")
    for _ in range(PAGES_MOST):
        page = found.pop("next_page", None) if isinstance(found, dict) else None
        if page is None:
            break
        more = server.get("/v1/admin/usage", {**asked, "page": page})
        rows += rows_of(more, "rows")
        if isinstance(more, dict) and "next_page" in more:
            found["next_page"] = more["next_page"]
    else:
        raise Refusal(f"More than {len(rows):,} rows. Narrow it by --from, --to, --tenant or --by.")
    if as_json:
        document(found)
        return
    if not rows:
        say("Nothing was used.")
        return
    total = found.get("total") if isinstance(found, dict) else None
    shown = [legible(row) for row in rows]
    if isinstance(total, dict):
        first = next(iter(rows[0]))
        shown.append({first: "total", **legible({k: v for k, v in total.items() if k != first})})
    table([{name: row.get(name) for name in _worth(shown)} for row in shown])
    if isinstance(found, dict) and found.get("requests_overlap") is True:
        say("A request counts in each row that it has tokens in; the total counts it once.")


def _tagged(given: list[str] | None) -> dict[str, object]:
    """As the server is asked."""
    pairs = [text.partition("=") for text in given or ()]
    found: dict[str, object] = {f"tag:{name}": value for name, equals, value in pairs if equals}
    if len(found) != len(pairs) or "tag:" in found:
        raise Refusal(
            "--tag: each is a name and a value, such as team=search, and each name once.",
            exit_code=2,
        )
    return found


def legible(row: dict[str, object]) -> dict[str, object]:
    """Money once, device time in milliseconds, and no tag that a client gave looks like a word of the table."""
    shown = {
        name: f'"{value}"' if name.startswith("tag:") and value in TABLES_OWN else value
        for name, value in row.items()
        if name not in {"nano_usd", "device_ns"}
    }
    device_ns = row.get("device_ns")
    if isinstance(device_ns, int):
        shown["device_ms"] = round(device_ns / 1e6)
    return shown


def _worth(rows: list[dict[str, object]]) -> list[str]:
    """Without the columns of what happens seldom, where it has not happened."""
    seldom = {"estimated", "estimated_usd", "adjustment_usd", "cache_write_tokens"}
    nothing = {None, 0, "0.000000000"}
    names = dict.fromkeys(name for row in rows for name in row)
    return [
        name
        for name in names
        if name not in seldom or any(row.get(name) not in nothing for row in rows)
    ]


@usage.command("export")
def export(
    period: Period,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to; made if absent.")],
    format_: Annotated[str, typer.Option("--format", help="csv or parquet.")] = "csv",
    focus: Annotated[str, typer.Option(help="Version of FOCUS: 1.2 or 1.4.")] = "1.2",
    granularity: Annotated[str, typer.Option(help="A row for each day or hour.")] = "day",
    operator: Annotated[str | None, typer.Option(help="Who issues the invoices.")] = None,
    host: Annotated[str | None, typer.Option(help="Whose machines these are.")] = None,
    tenant: OfTenant = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Write a month as FOCUS rows, with a manifest: rows, totals, SHA-256, versions of prices and rules.

    A month that is not closed is written as of a minute ago; what ended later is in the next export.
    """
    server = connect(admin_url, token, state_dir)
    asked: dict[str, object] = {
        "period": period,
        "focus": focus,
        "format": format_,
        "granularity": granularity,
        "tenant": tenant,
        "operator": operator,
        "host": host,
    }
    found = server.get("/v1/admin/usage/export/manifest", asked, timeout_s=LONG_S)
    manifest = _manifest(found)
    out.mkdir(parents=True, exist_ok=True)
    target = out / manifest.files[0].name
    as_of = {"as_of_ms": manifest.as_of_ms}
    beside = target.with_name(target.name + ".manifest.json")
    try:
        _fetched(server, {**asked, **as_of}, target, manifest.files[0])
        _put(beside, msgspec.json.format(msgspec.json.encode(found), indent=2))
    except OSError as why:
        raise Refusal(
            f"{target.parent} cannot be written to ({why.strerror}). Free some room, or name another --out."
        ) from why
    if as_json:
        document({"file": str(target), "manifest": str(beside), **found})
    else:
        say(
            f"{target}: {manifest.rows:,} rows, {manifest.totals['BilledCost']} USD, {manifest.state}."
        )
        say(f"{beside}: what it holds, and its SHA-256.")
        if manifest.as_of_ms is not None:
            at = datetime.fromtimestamp(manifest.as_of_ms // 1000, UTC)
            say(f"As of {at:%Y-%m-%d %H:%M:%S} UTC; what ended later is in the next export.")
    if not manifest.agrees:
        raise Refusal(
            "These rows do not come to what the ledger holds. Run 'lockgate usage reconcile'."
        )


class _File(msgspec.Struct, frozen=True):
    name: str
    size: int = msgspec.field(name="bytes")
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    state: str
    rows: int
    agrees: bool
    totals: dict[str, str]
    as_of_ms: Annotated[int, msgspec.Meta(ge=0, lt=253_402_300_800_000)] | None
    files: tuple[_File]


def _manifest(found: object) -> _Manifest:
    """Checked, since a file is named by it."""
    try:
        manifest = msgspec.convert(found, _Manifest)
    except msgspec.ValidationError as why:
        raise Refusal("The server's manifest has another shape than expected.") from why
    if not _FILE.fullmatch(manifest.files[0].name) or "BilledCost" not in manifest.totals:
        raise Refusal("The server's manifest names a file that is none. Nothing was written.")
    return manifest


def _fetched(server: Server, asked: dict[str, object], target: Path, told: _File) -> None:
    """Written aside, and put in place when it is what the manifest says."""
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    aside, hashed, size = Path(name), hashlib.sha256(), 0
    try:
        with os.fdopen(fd, "wb") as file:

            def take(chunk: bytes) -> None:
                nonlocal size
                size += len(chunk)
                if size > told.size:
                    raise Refusal("More came than the manifest says. Try again.")
                hashed.update(chunk)
                file.write(chunk)

            server.download("/v1/admin/usage/export", asked, take)
        if (size, hashed.hexdigest()) != (told.size, told.sha256):
            raise Refusal(
                "What came is not what the manifest says: its SHA-256 differs. Try again."
            )
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _put(target: Path, data: bytes) -> None:
    aside = target.with_name(f".{target.name}")
    try:
        aside.write_bytes(data + b"\n")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


@usage.command("device")
def device(
    by: Annotated[
        str, typer.Option(help="Group by these: model, minute, hour, day, month.")
    ] = "model",
    since: Since = None,
    until: Until = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Where the time of devices went: to requests, to overhead by kind, idle; all of it is the clock's."""
    server = connect(admin_url, token, state_dir)
    asked: dict[str, object] = {"by": by, "from": since, "to": until}
    found = server.get("/v1/admin/usage/device", asked)
    rows = rows_of(found, "rows")
    if as_json:
        document(found)
        return
    if not rows:
        say("No device was counted.")
        return
    total = found.get("total") if isinstance(found, dict) else None
    shown = [seconds(row) for row in rows]
    if isinstance(total, dict) and by:
        shown.append({by.split(",", maxsplit=1)[0]: "total", **seconds(total)})
    table([{name: row.get(name) for name in _worth(shown)} for row in shown])


def seconds(row: dict[str, object]) -> dict[str, object]:
    """As a person reads them: what is in `<name>_ns`, as seconds."""
    return {
        name.removesuffix("_ns") + "_s" * name.endswith("_ns"): round(value / 1e9, 3)
        if isinstance(value, int) and name.endswith("_ns")
        else value
        for name, value in row.items()
    }


@usage.command("reconcile")
def reconcile(
    since: Since = None,
    until: Until = None,
    invoice: Annotated[
        Path | None,
        typer.Option(
            help="An invoice to compare: CSV with day, amount_usd and, if it has one, model."
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Whose invoice it is; without it, everybody's.")
    ] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Check that the book agrees with itself, and an invoice with it.  Exit code 0 only if all does."""
    if tenant is not None and invoice is None:
        raise Refusal(
            "--tenant says whose --invoice it is; without one, the book is checked for everybody.",
            exit_code=2,
        )
    billed = None if invoice is None else read_invoice(invoice)
    server = connect(admin_url, token, state_dir)
    within = {"from": since, "to": until}
    found = server.get("/v1/admin/usage/reconcile", within, timeout_s=LONG_S)
    if not isinstance(found, dict):
        raise Refusal("The server's answer has another shape than expected.")
    if billed is not None:
        found["invoice"] = compared(server, billed, since, until, tenant)
        found["agrees"] = bool(found.get("agrees")) and found["invoice"]["agrees"]
    if as_json:
        document(found)
    else:
        _told(found)
    if found.get("agrees") is not True:
        raise Refusal("Not everything agrees; see above.")


def _told(found: dict[str, object]) -> None:
    for name in ("requests", "ledger", "device_time", "invoice"):
        part = found.get(name)
        if isinstance(part, dict):
            say(f"{name.replace('_', ' ')}:")
            pairs({key: value for key, value in part.items() if key != "rows"})
            if isinstance(rows := part.get("rows"), list) and rows:
                table(rows)
    disagreements = found.get("disagreements")
    if isinstance(disagreements, list):
        for words in disagreements:
            note(str(words))


@usage.command("close")
def close(
    period: Period,
    reason: Reason = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Check a closed month against its hash instead.")
    ] = False,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Close a month for ever, from 48 h after its end; what arrives later is a correction in the next."""
    server = connect(admin_url, token, state_dir)
    path = f"/v1/admin/periods/{segment(period)}"
    if verify:
        found = server.get(f"{path}/verify", timeout_s=LONG_S)
        agrees = isinstance(found, dict) and found.get("agrees") is True
        if as_json:
            document(found)
        else:
            say(f"{period}: " + ("as it was closed." if agrees else "NOT as it was closed."))
        if not agrees:
            raise Refusal("Rows of a closed month were changed. Compare it with a backup.")
        return
    if not reason:
        raise Refusal("Give --reason; it is kept with the closing.", exit_code=2)
    done = server.post(f"{path}/close", {"reason": reason}, timeout_s=LONG_S)
    if as_json:
        document(done)
    else:
        pairs(done)


@usage.command("periods")
def listed(
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List months: open, closing, closed."""
    found = connect(admin_url, token, state_dir).get("/v1/admin/periods")
    if as_json:
        document(found)
    else:
        table(rows_of(found, "periods"))
