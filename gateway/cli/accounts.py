"""`lockgate tenant`, `budget` and `usage`: who is served, up to what, and what it came to."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.client import connect, segment
from gateway.cli.credentials import rows_of
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token
from gateway.cli.show import Refusal, document, say, table
from gateway.settings.shape import Window
from gateway.settings.units import Usd, Zone

tenants = typer.Typer()
budgets = typer.Typer()
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


@budgets.command("set")
def set_budget(
    tenant: Annotated[str, typer.Option(help="Whose.")],
    usd: Annotated[str, typer.Option(help='US dollars per window, such as "50.00".')],
    reason: Reason,
    project: Annotated[str | None, typer.Option(help="Of this project only.")] = None,
    user: Annotated[str | None, typer.Option(help="Of this user only.")] = None,
    key: Annotated[str | None, typer.Option(help="Of this API key only, by id.")] = None,
    window: Annotated[Window, typer.Option(help="When it starts anew.")] = Window.CALENDAR_MONTH,
    zone: Annotated[str, typer.Option(help="Whose calendar.")] = "UTC",
    soft: Annotated[bool, typer.Option("--soft", help="Report only, refuse nothing.")] = False,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Set a budget for a tenant, or for one project, user or key of it."""
    narrower = {"project": project, "user": user, "key": key}
    chosen = [(scope, name) for scope, name in narrower.items() if name is not None]
    if len(chosen) > 1:
        raise Refusal("One budget, one scope. Give one of --project, --user, --key.", exit_code=2)
    scope, name = chosen[0] if chosen else ("tenant", tenant)
    try:
        amount, calendar = Usd.parse(usd), Zone.parse(zone)
    except ValueError as error:
        raise Refusal(f"{error}.", exit_code=2) from None
    server = connect(admin_url, token, state_dir)
    body = {
        "tenant": tenant,
        "scope": scope,
        "id": name,
        "usd": str(amount),
        "window": window.value,
        "zone": str(calendar),
        "hard": not soft,
        "reason": reason,
    }
    done = server.post("/v1/admin/budgets", body)
    if as_json:
        document(done)
    else:
        kind = "Soft budget" if soft else "Budget"
        say(f"{kind} of {scope} {name}: {amount} USD per {window.value} ({calendar}).")


@budgets.command("show")
def show_budgets(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show budgets: limit, spent, held and what is left in the window."""
    found = connect(admin_url, token, state_dir).get("/v1/admin/budgets", {"tenant": tenant})
    if as_json:
        document(found)
        return
    rows = rows_of(found, "budgets")
    if rows:
        table(rows)
    else:
        say("No budgets. 'lockgate budget set' makes one.")


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
