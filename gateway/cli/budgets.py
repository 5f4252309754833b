"""`lockgate budget`: set, show, top-up, credit, refund, and what was given so far."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.client import connect
from gateway.cli.credentials import rows_of
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Token, tags_of
from gateway.cli.show import Refusal, document, say, table
from gateway.settings.shape import Window
from gateway.settings.units import Usd, Zone

budgets = typer.Typer()

Tenant = Annotated[str, typer.Option(help="Whose.")]
Project = Annotated[str | None, typer.Option(help="Of this project only.")]
User = Annotated[str | None, typer.Option(help="Of this user only.")]
Issuer = Annotated[
    str | None,
    typer.Option(help="The user's identity provider; without it, at each of them by itself."),
]
Key = Annotated[str | None, typer.Option(help="Of this API key only, by id.")]
Tag = Annotated[
    str | None,
    typer.Option(help="Of what keys and tokens file under this tag, such as team=search."),
]
Amount = Annotated[str, typer.Option(help='US dollars, such as "50.00".')]
Once = Annotated[
    str | None,
    typer.Option(
        "--id",
        help="Names what is given, so that asked again it is given once; else one is made up.",
    ),
]


@budgets.command("set")
def set_budget(
    tenant: Tenant,
    usd: Annotated[str, typer.Option(help='US dollars per window, such as "50.00".')],
    reason: Reason,
    project: Project = None,
    user: User = None,
    issuer: Issuer = None,
    key: Key = None,
    tag: Tag = None,
    window: Annotated[Window, typer.Option(help="When it starts anew.")] = Window.CALENDAR_MONTH,
    zone: Annotated[str, typer.Option(help="Whose calendar.")] = "UTC",
    soft: Annotated[bool, typer.Option("--soft", help="Report only, refuse nothing.")] = False,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Refuse nothing, count what it would have refused.")
    ] = False,
    notify_at: Annotated[
        list[float] | None,
        typer.Option(help="Tell when so much is spent, such as 0.8; may be given several times."),
    ] = None,
    till: Annotated[
        bool,
        typer.Option(
            "--till",
            help="Set part of it aside in Redis, so that many gateways refuse without the database.",
        ),
    ] = False,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Set a budget for a tenant, or for one project, user, key or tag of it."""
    scope, name = chosen(tenant, project, user, key, tag)
    try:
        amount, calendar = Usd.parse(usd), Zone.parse(zone)
    except ValueError as error:
        raise Refusal(f"{error}.", exit_code=2) from None
    server = connect(admin_url, token, state_dir)
    body: dict[str, object] = {
        "tenant": tenant,
        "scope": scope,
        "id": name,
        "usd": str(amount),
        "window": window.value,
        "zone": str(calendar),
        "hard": not soft,
        "reason": reason,
    }
    body |= {"hard": False, "mode": "shadow"} if shadow else {}
    body |= {"notify_at": sorted(notify_at)} if notify_at else {}
    body |= {"till": True} if till else {}
    body |= {} if issuer is None else {"issuer": issuer}
    done = server.post("/v1/admin/budgets", body)
    if as_json:
        document(done)
    else:
        kind = "Shadow budget" if shadow else "Soft budget" if soft else "Budget"
        whose = f"{scope} {name}" if issuer is None else f"{scope} {name} of {issuer}"
        say(
            f"{kind} of {whose}: {amount} USD per {window.value} ({calendar}){', with a till' * till}."
        )


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


@budgets.command("top-up")
def top_up(
    tenant: Tenant,
    usd: Amount,
    reason: Reason,
    project: Project = None,
    user: User = None,
    issuer: Annotated[str | None, typer.Option(help="The user's identity provider.")] = None,
    key: Key = None,
    tag: Tag = None,
    once: Once = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Give one budget more room in the window of now, and in no later one."""
    scope, name = chosen(tenant, project, user, key, tag)
    body = {"scope": scope, "name": name, "issuer": issuer}
    done = _give("top-up", tenant, usd, reason, once, body, (state_dir, admin_url, token))
    _tell(done, f"{scope} {name} may spend more in this window", as_json=as_json)


@budgets.command("credit")
def credit(
    tenant: Tenant,
    usd: Amount,
    reason: Reason,
    once: Once = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Lower what a tenant owes.  Its budgets stay as they are."""
    done = _give("credit", tenant, usd, reason, once, {}, (state_dir, admin_url, token))
    _tell(done, f"{tenant} owes less", as_json=as_json)


@budgets.command("refund")
def refund(
    request_id: Annotated[str, typer.Argument(help="The request that was charged.")],
    tenant: Tenant,
    usd: Amount,
    reason: Reason,
    once: Once = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Give back some or all of what one request was charged, in the window in which it was."""
    body: dict[str, str | None] = {"request_id": request_id}
    done = _give("refund", tenant, usd, reason, once, body, (state_dir, admin_url, token))
    _tell(done, f"{request_id} cost {tenant} less", as_json=as_json)


@budgets.command("adjustments")
def adjustments(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    request: Annotated[str | None, typer.Option(help="Of this request only.")] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show what was topped up, credited and refunded, with who did it and why."""
    server = connect(admin_url, token, state_dir)
    asked = {"tenant": tenant, "request_id": request}
    found = server.get("/v1/admin/budgets/adjustments", asked)
    if as_json:
        document(found)
        return
    rows = rows_of(found, "adjustments")
    if rows:
        table(rows)
    else:
        say("Nothing was topped up, credited or refunded.")


def chosen(
    tenant: str, project: str | None, user: str | None, key: str | None, tag: str | None
) -> tuple[str, str]:
    """The one scope that is meant, and its name."""
    tags_of(None if tag is None else [tag])  # raises what is wrong with it
    narrower = {"project": project, "user": user, "key": key, "tag": tag}
    named = [(scope, name) for scope, name in narrower.items() if name is not None]
    if len(named) > 1:
        raise Refusal(
            "One budget, one scope. Give one of --project, --user, --key, --tag.", exit_code=2
        )
    return named[0] if named else ("tenant", tenant)


def _give(
    what: str,
    tenant: str,
    usd: str,
    reason: str,
    once: str | None,
    more: dict[str, str | None],
    where: tuple[Path, str | None, str | None],
) -> object:
    try:
        amount = Usd.parse(usd)
    except ValueError as error:
        raise Refusal(f"{error}.", exit_code=2) from None
    state_dir, admin_url, token = where
    body = {"tenant": tenant, "usd": str(amount), "reason": reason, "id": once} | more
    given = {name: value for name, value in body.items() if value is not None}
    return connect(admin_url, token, state_dir).post(f"/v1/admin/budgets/{what}", given)


def _tell(done: object, says: str, *, as_json: bool) -> None:
    if as_json:
        document(done)
        return
    given = done if isinstance(done, dict) else {}
    again = ", as before" if given.get("repeat") else ""
    say(f"{says}: {given.get('usd')} USD ({given.get('id')}{again}).")
