"""`lockgate tenant`: who is served."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.client import connect, segment
from gateway.cli.credentials import rows_of
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.show import document, say, table

tenants = typer.Typer()

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
