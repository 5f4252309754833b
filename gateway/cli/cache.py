"""`lockgate cache`: what is kept of prompts, and its end.  Counts and pseudonyms; nobody reads what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gateway.cli.client import connect
from gateway.cli.credentials import rows_of
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.show import Refusal, document, note, say, table

caches = typer.Typer()

_MIB = 1 << 20


@caches.command("list")
def list_kept(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    by_label: Annotated[
        bool, typer.Option("--by-label", help="A row for each label, by its pseudonym.")
    ] = False,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List how much is kept, of whom and in which scope. A tenant's administrator sees its own."""
    asked = {"tenant": tenant, "by": "label" if by_label else None}
    found = connect(admin_url, token, state_dir).get("/v1/admin/cache", asked)
    if as_json:
        document(found)
        return
    rows = rows_of(found, "kept")
    if rows:
        table([_legible(row) for row in rows])
    else:
        say("Nothing is kept.")
    for model in found.get("silent", ()):
        note(f"note: the executor of {model} is not there, or did not answer in time.")
    if found.get("left_out"):
        note(f"note: {found['left_out']:,} rows with less are left out. Give --tenant.")


def _legible(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name != "bytes"}
    if isinstance(row.get("bytes"), int):
        shown["MiB"] = row["bytes"] / _MIB
    return shown


@caches.command("purge")
def purge(
    reason: Reason,
    tenant: Annotated[str | None, typer.Option(help="All that is kept of a tenant.")] = None,
    user: Annotated[str | None, typer.Option(help="Of the tenant, this user's alone.")] = None,
    issuer: Annotated[
        str | None, typer.Option(help="Who says so of the user [your own issuer].")
    ] = None,
    doc: Annotated[
        str | None, typer.Option("--document", help="What was computed of this document, by id.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="What was computed of this template, by id.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All tenants'.")] = False,
    proof: Annotated[
        Path | None,
        typer.Option("--proof", help="Write the proof here, for 'audit purge verify'."),
    ] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Purge what is kept: it is wiped and read back, and a signed record says so.

    Requests that read it end and may be sent again. What is registered is computed anew; to be rid of a text,
    delete it.
    """
    chosen = [each for each in (tenant, doc, template, everything or None) if each is not None]
    if len(chosen) != 1 or (user is not None and tenant is None):
        raise Refusal(
            "What? Give one of --tenant (with it perhaps --user), --document, --template, --all.",
            exit_code=2,
        )
    body = {
        "reason": reason,
        "tenant": tenant,
        "user": user,
        "issuer": issuer,
        "document": doc,
        "template": template,
        "all": everything or None,
    }
    done = connect(admin_url, token, state_dir).post("/v1/admin/cache/purge", body)
    if proof is not None:
        _write(proof, done.get("proof"))
    if as_json:
        document(done)
        return
    say(
        f"Purged {done.get('blocks'):,} blocks; all were wiped and read back as zero. "
        f"{done.get('requests_ended'):,} requests that read them ended."
    )
    note(f"Record {done.get('record'):,} of the audit log is its proof." + _kept(proof))


def _write(path: Path, proof: object) -> None:
    try:
        path.write_bytes(msgspec.json.encode(proof) + b"\n")
    except OSError as error:
        raise Refusal(
            f"It was purged, but {path} cannot be written: {error.strerror}. 'lockgate audit prove' "
            "makes the proof again."
        ) from None


def _kept(path: Path | None) -> str:
    return "" if path is None else f" 'lockgate audit purge verify {path}' checks it."
