"""`lockgate tenant` and `usage`: who is served, and what it came to."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.client import connect, segment
from gateway.cli.credentials import rows_of
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.show import document, say, table

tenants = typer.Typer()
usage = typer.Typer()

Name = Annotated[str, typer.Argument(help="The tenant.")]


@tenants.command("list")
def list_tenants(
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the tenants, their plans and whether they are suspended."""
    found = connect(admin_url, token, state_dir).get("/v1/admin/tenants")
    if as_json:
        document(found)
    else:
        table(rows_of(found, "tenants"))


@tenants.command("suspend")
def suspend(
    tenant: Name,
    reason: Reason,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Suspend a tenant at once: new requests are refused, running streams end."""
    server = connect(admin_url, token, state_dir)
    done = server.post(f"/v1/admin/tenants/{segment(tenant)}/suspend", {"reason": reason})
    if as_json:
        document(done)
    else:
        say(f"{tenant} is suspended. 'lockgate tenant resume {tenant} --reason …' lifts it.")


@tenants.command("resume")
def resume(
    tenant: Name,
    reason: Reason,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Serve a suspended tenant again."""
    server = connect(admin_url, token, state_dir)
    done = server.post(f"/v1/admin/tenants/{segment(tenant)}/resume", {"reason": reason})
    if as_json:
        document(done)
    else:
        say(f"{tenant} is served again.")


@usage.command("report")
def report(
    by: Annotated[str, typer.Option(help="Group by these, such as tenant,user.")] = "tenant,user",
    since: Annotated[
        str | None, typer.Option("--from", help="First day, such as 2026-11-01.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Day after the last.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Tokens and price by tenant and user; every grouping comes to the same total."""
    server = connect(admin_url, token, state_dir)
    found = server.get("/v1/admin/usage", {"by": by, "from": since, "to": until, "tenant": tenant})
    if as_json:
        document(found)
        return
    rows = rows_of(found, "rows")
    if not rows:
        say("Nothing was used.")
        return
    total = found.get("total") if isinstance(found, dict) else None
    if isinstance(total, dict):
        first = next(iter(rows[0]))
        rows = [*rows, {first: "total", **{k: v for k, v in total.items() if k != first}}]
    table([legible(row) for row in rows])


def legible(row: dict[str, object]) -> dict[str, object]:
    """Money once, device time in milliseconds."""
    shown = {name: value for name, value in row.items() if name not in {"nano_usd", "device_ns"}}
    device_ns = row.get("device_ns")
    if isinstance(device_ns, int):
        shown["device_ms"] = round(device_ns / 1e6)
    return shown


@usage.callback()
def _group() -> None:
    """Keep `report` a word of its own while it is the only one."""
