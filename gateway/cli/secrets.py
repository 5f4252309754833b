"""`lockgate tenant secret|rotate|retire|shred` and `lockgate root-key`: what tenants' texts hang on.

Nothing here sees a secret: the server works with them, and only the root key's file is touched, on its own host.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.accounts import Name, tenants
from gateway.cli.audit import RootKey
from gateway.cli.client import connect, segment
from gateway.cli.credentials import rows_of
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.show import Refusal, document, note, say, table

roots = typer.Typer()

ROOTS = "/v1/admin/root-key"


@tenants.command("secret")
def secret(
    tenant: Name,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show the versions of a tenant's secret, and how many texts are sealed under each."""
    _show(connect(admin_url, token, state_dir).get(_path(tenant, "secret")), as_json=as_json)


@tenants.command("rotate")
def rotate(
    tenant: Name,
    reason: Reason,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Give a tenant a new secret. Its texts are sealed anew behind it; nobody's request fails.

    The old version stays until 'tenant retire' destroys it. For a tenant that was shredded it is a new beginning.
    """
    server = connect(admin_url, token, state_dir)
    _show(server.post(_path(tenant, "secret/rotate"), {"reason": reason}), as_json=as_json)


@tenants.command("retire")
def retire(
    tenant: Name,
    reason: Reason,
    version: Annotated[int, typer.Option("--version", min=1, help="The old one to destroy.")],
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Destroy an old version of a tenant's secret, when no text is sealed under it any more.

    Nobody can tell any more who the people are whom the audit log names under it, nor read it in old copies.
    """
    server = connect(admin_url, token, state_dir)
    body = {"version": version, "reason": reason}
    _show(server.post(_path(tenant, "secret/retire"), body), as_json=as_json)


@tenants.command("shred")
def shred(
    tenant: Name,
    reason: Reason,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for the tenant's name again.")
    ] = False,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Destroy a tenant's secret: its texts, and who its people are in the audit log, are lost for ever.

    Its keys, budgets and usage stay, and it is served; 'tenant suspend' ends that.
    """
    server = connect(admin_url, token, state_dir)
    confirm = tenant if yes else typed_again(tenant)
    done = server.post(_path(tenant, "shred"), {"reason": reason, "confirm": confirm})
    if as_json:
        document(done)
        return
    say(
        f"{tenant} is shredded: {done.get('versions'):,} versions of its secret, {done.get('texts'):,} texts, "
        f"{done.get('blocks'):,} blocks of memory."
    )
    note(
        f"Record {done.get('record'):,} of the audit log is its proof. Old copies of the database are readable "
        "until the root key that wrapped them is dropped: see 'lockgate root-key'."
    )


def typed_again(tenant: str) -> str:
    if not sys.stdin.isatty():
        raise Refusal("This cannot be undone. Give --yes.", exit_code=2)
    sys.stderr.write(f"This cannot be undone. Type {tenant} to go on: ")
    sys.stderr.flush()
    if (typed := sys.stdin.readline().removesuffix("\n")) != tenant:
        raise Refusal("That is another name. Nothing was done.")
    return typed


@roots.command("show")
def show_roots(
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show the root keys that the server has, by id, and how many secrets each wraps."""
    _show_roots(connect(admin_url, token, state_dir).get(ROOTS), as_json=as_json)


@roots.command("add")
def add_root(root_key: RootKey = None, state_dir: StateDir = VAR, as_json: Json = False) -> None:
    """Add a root key to the file on this machine. It wraps from the server's next start on."""
    from security.keyring import KeyringError
    from security.keyring_roots import add_root as add

    path = _file(root_key, state_dir)
    try:
        added = add(path)
    except KeyringError as error:
        raise Refusal(str(error)) from None
    if as_json:
        document({"added": added})
        return
    say(f"Added root key {added} to {path}.")
    note("Keep a copy of the file, restart the server, then 'lockgate root-key rewrap'.")


@roots.command("rewrap")
def rewrap(
    reason: Reason,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Wrap all tenants' secrets by the newest root key, in one commit."""
    done = connect(admin_url, token, state_dir).post(f"{ROOTS}/rewrap", {"reason": reason})
    if not as_json:
        say(f"{done.get('rewrapped'):,} secrets were wrapped again.")
    _show_roots(done, as_json=as_json)


@roots.command("drop")
def drop_root(
    root: Annotated[str, typer.Argument(help="Its id; 'root-key show' lists them.")],
    reason: Reason,
    root_key: RootKey = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Drop a root key that wraps nothing any more from the file on this machine.

    What it wrapped in old copies of the database cannot be read by anybody then. The server is asked first.
    """
    from security.keyring import KeyringError, open_keyring
    from security.keyring_roots import drop_root as drop

    path = _file(root_key, state_dir)
    try:
        last = open_keyring(path).root_ids[-1]
        server = connect(admin_url, token, state_dir)
        if server.get(ROOTS).get("wraps") != last:
            raise Refusal(
                f"The server does not wrap by the last key of {path}. Restart it, or name the file that it has."
            )
        freed = server.post(f"{ROOTS}/release", {"root": root, "reason": reason})
        in_use = [each["root"] for each in rows_of(freed, "roots") if each.get("secrets")]
        drop(path, root, in_use=[str(each) for each in in_use])
    except KeyringError as error:
        raise Refusal(str(error)) from None
    if as_json:
        document(freed)
        return
    say(f"Dropped root key {root} from {path}.")
    note("Copies of the file still have it: replace them.")


def _file(root_key: Path | None, state_dir: Path) -> Path:
    """None is made here: it would be another server's."""
    path = root_key or state_dir / "root.key"
    if not path.exists():
        raise Refusal(f"There is no {path}. Name the file with --root-key or --state-dir.")
    return path


def _path(tenant: str, ends: str) -> str:
    return f"/v1/admin/tenants/{segment(tenant)}/{ends}"


def _show(found: Any, *, as_json: bool) -> None:
    if as_json:
        document(found)
        return
    rows = rows_of(found, "versions")
    if not rows:
        say(f"{found.get('tenant')} has no secret: it was shredded.")
        return
    current = found.get("current")
    table([{**row, "current": row.get("version") == current} for row in rows])
    if left := found.get("to_reseal"):
        note(f"note: {left:,} texts are still to be sealed anew. That goes on by itself.")


def _show_roots(found: Any, *, as_json: bool) -> None:
    if as_json:
        document(found)
        return
    wraps = found.get("wraps")
    table([{**row, "wraps": row.get("root") == wraps} for row in rows_of(found, "roots")])
