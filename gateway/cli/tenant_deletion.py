"""`lockgate tenant delete`: what is kept of it written to a folder first, then all of it destroyed but its costs."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.cli.accounts import Name, tenants
from gateway.cli.client import LONG_S, Server, connect, segment
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.secrets import typed_again
from gateway.cli.show import Refusal, document, note, say

__all__ = ["tenants"]

WAIT_S_MAX: Final = 120
"""For what runs to end, and for other gateways to hear of it."""


@tenants.command("delete")
def delete(
    tenant: Name,
    reason: Reason,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="A folder for all that is kept of it; made if absent."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for the tenant's name again.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Do not delete it after all; it stays suspended.")
    ] = False,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Delete a tenant for ever: suspend it, export it, destroy its secret, keys and texts.

    What it cost stays under a pseudonym, and all sums with it. Its name is refused from then on. Interrupted, or told to
    ask again: give the same command again.
    """
    server = connect(admin_url, token, state_dir)
    path = f"/v1/admin/tenants/{segment(tenant)}"
    body: dict[str, Any] = {"reason": reason}
    if abandon:
        done = server.post(f"{path}/delete", {**body, "confirm": tenant, "abandon": True})
        _told(done, f"{tenant} is not deleted, and stays suspended.", as_json=as_json)
        return
    if export is None:
        raise Refusal("Where to? Give --export FOLDER for what is kept of it.", exit_code=2)
    _writable(export)
    body["confirm"] = tenant if yes else typed_again(tenant)
    begun = _patiently(server, path, body)
    if begun.get("state") == "exportable":
        target, manifest = _exported(server, path, tenant, export)
        if not as_json:
            say(f"{target}: {sum(manifest['rows'].values()):,} rows, {manifest['bytes']:,} bytes.")
        done = _patiently(server, path, {**body, "export_sha256": manifest["sha256"]})
    else:  # it was exported before, and interrupted
        done = begun
    _told(
        done,
        f"{tenant} is deleted. What it cost is kept as {done.get('pseudonym')}.",
        as_json=as_json,
    )
    if not as_json:
        if done.get("files_wiped") is not True:
            note(
                "The book's file could not be written anew now: it is busy, or its disk is full. Until it is, which is "
                "tried once a day and at each start, parts of names may stand in gaps of it."
            )
        note("Take it out of the configuration. Older backups still name it.")


def _told(done: Any, says: str, *, as_json: bool) -> None:
    if as_json:
        document(done)
    else:
        say(says)


def _writable(folder: Path) -> None:
    """Before anything is done.  OSError is told by `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=folder)
    os.close(fd)
    Path(name).unlink()


def _patiently(server: Server, path: str, body: dict[str, Any]) -> Any:
    """What says when to come again is asked again."""
    waited_s = 0
    while True:
        try:
            return server.post(f"{path}/delete", body, timeout_s=LONG_S)
        except Refusal as refusal:
            wait_s = refusal.facts.get("retry_after_s")
            if not isinstance(wait_s, int) or waited_s + wait_s > WAIT_S_MAX:
                raise
            note(f"{refusal} Trying again in {wait_s} s.")
            time.sleep(wait_s)
            waited_s += wait_s


def _exported(server: Server, path: str, tenant: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file and what it holds, both durable when this returns."""
    target = folder / f"tenant-{segment(tenant)}.jsonl"
    hashed, size, last = hashlib.sha256(), 0, b""
    fd, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.")
    aside = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:

            def take(chunk: bytes) -> None:
                nonlocal size, last
                size += len(chunk)
                last = (last + chunk)[-65536:]
                hashed.update(chunk)
                file.write(chunk)

            server.download(f"{path}/export", {}, take)
            file.flush()
            os.fsync(file.fileno())
        rows = _end_of(last)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    manifest = {
        "tenant": tenant,
        "file": target.name,
        "bytes": size,
        "sha256": hashed.hexdigest(),
        "rows": rows,
    }
    beside = target.with_name(target.name + ".manifest.json")
    with beside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return target, manifest


def _end_of(data: bytes) -> dict[str, int]:
    class End(msgspec.Struct, frozen=True):
        end: bool
        rows: dict[str, int]

    try:
        return msgspec.json.decode(data.splitlines()[-1], type=End).rows
    except (msgspec.MsgspecError, IndexError):
        raise Refusal("The export broke off. Nothing was destroyed; try again.") from None
