"""`lockgate token` and `lockgate key`: what people and services present.

Secrets are printed once, to standard output alone, and kept nowhere by the command.
"""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.client import connect, segment
from gateway.cli.options import VAR, AdminUrl, Json, Reason, StateDir, Tags, Token, tags_of
from gateway.cli.show import Refusal, document, note, pairs, say, table
from policies.facts import Role

TTL_S_MAX = 30 * 86_400
_DURATION = re.compile(r"([0-9]{1,9})([smhd]?)", re.ASCII)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_OPERATORS = frozenset({Role.OPERATOR, Role.OPERATOR_FINANCE, Role.OPERATOR_SECURITY})
_TENANTS = frozenset({Role.TENANT_ADMIN, Role.FINANCE})

tokens = typer.Typer()
keys = typer.Typer()

Roles = Annotated[
    list[Role] | None,
    typer.Option("--role", help="May be given several times; plain user without."),
]
Tenant = Annotated[str, typer.Option(help="Whose.")]


def duration_s(text: str) -> int:
    """`90`, `90s`, `15m`, `8h`, `30d` as seconds."""
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise Refusal(
            f"{text!r} is no duration. Expected such as 90s, 15m, 8h or 30d.", exit_code=2
        )
    return int(match[1]) * _UNIT_S[match[2]]


@tokens.command("mint")
def mint(
    user: Annotated[str, typer.Option(help="The subject.")],
    tenant: Annotated[str | None, typer.Option(help="Whose; an operator's has none.")] = None,
    role: Roles = None,
    project: Annotated[str | None, typer.Option(help="A project of the tenant.")] = None,
    ttl: Annotated[str, typer.Option(help="How long it holds, at most 30d.")] = "8h",
    tag: Tags = None,
    dpop_key: Annotated[
        Path | None,
        typer.Option(
            help="A PEM key (P-256, Ed25519) that its holder must prove with each request."
        ),
    ] = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Mint a token of the development issuer, which only a development server accepts."""
    from security.dev_issuer import KEY_FILE, holders_thumbprint, open_dev_issuer
    from security.keyring import KeyringError

    roles = tuple(role or ())
    require_fitting(tenant, roles)
    tags = tags_of(tag)
    ttl_s = duration_s(ttl)
    if ttl_s > TTL_S_MAX:
        raise Refusal("A token holds 30d at most. Give a shorter --ttl.")
    if not (state_dir / KEY_FILE).exists():
        raise Refusal(
            f"There is no development issuer in {state_dir}. 'lockgate serve' without --config makes one; "
            "in production your identity provider issues tokens, and 'lockgate key create' keys."
        )
    now_s, token_id = int(time.time()), f"dev_{secrets.token_hex(12)}"
    try:
        token = open_dev_issuer(state_dir).mint(
            tenant=tenant,
            user=user,
            now_s=now_s,
            ttl_s=ttl_s,
            jti=token_id,
            roles=roles,
            project=project,
            tags=tags,
            bound_to=None if dpop_key is None else holders_thumbprint(dpop_key),
        )
    except KeyringError as error:
        raise Refusal(str(error)) from None
    if as_json:
        document({"token": token, "token_id": token_id, "expires_at": now_s + ttl_s})
    else:
        say(token)
        note(
            f"id {token_id}, holds for {ttl}; 'lockgate token revoke --token-id {token_id}' ends it."
        )


def require_fitting(tenant: str | None, roles: tuple[Role, ...]) -> None:
    """An operator belongs to no tenant, everybody else to one."""
    operator = bool(_OPERATORS & set(roles))
    if operator and (tenant is not None or _TENANTS & set(roles)):
        raise Refusal(
            "An operator belongs to no tenant. Leave out --tenant and the tenant's roles."
        )
    if not operator and tenant is None:
        raise Refusal("Whose user is it? Give --tenant, or an operator's --role.")


@tokens.command("revoke")
def revoke_token(
    token_id: Annotated[str | None, typer.Option(help="One token, by its id (jti).")] = None,
    subject: Annotated[str | None, typer.Option(help="All tokens of this user until now.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="The subject's tenant; of an operator there is none.")
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(help="Who issued them [the development issuer].")
    ] = None,
    reason: Reason = "",
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Revoke a token, or all of a subject. Holds within a second, running streams included."""
    from security.dev_issuer import ISSUER

    if (token_id is None) == (subject is None):
        raise Refusal("Which? Give either --token-id or --subject.", exit_code=2)
    server = connect(admin_url, token, state_dir)
    body = {
        "token_id": token_id,
        "subject": subject,
        "issuer": (issuer or ISSUER) if subject else issuer,
        "tenant": tenant,
        "reason": reason or None,
    }
    done = server.post("/v1/admin/tokens/revoke", body)
    if as_json:
        document(done)
    else:
        whose = f"{tenant}'s {subject}" if tenant else f"{subject}, who belongs to no tenant"
        say(f"Revoked {f'token {token_id}' if token_id else f'all tokens of {whose}'}.")


@keys.command("create")
def create_key(
    tenant: Tenant,
    user: Annotated[str, typer.Option(help="The service, as it appears in reports.")],
    project: Annotated[str | None, typer.Option(help="A project of the tenant.")] = None,
    role: Roles = None,
    service_class: Annotated[
        str | None, typer.Option("--class", help="The service class it asks in.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="How long it holds, such as 90d [until revoked].")
    ] = None,
    tag: Tags = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Create an API key. The secret is shown this once."""
    expires_at = None if expires_in is None else int(time.time()) + duration_s(expires_in)
    if _OPERATORS & set(role or ()):
        raise Refusal("A key belongs to a tenant and cannot be an operator's. Use a token.")
    server = connect(admin_url, token, state_dir)
    body = {
        "tenant": tenant,
        "user": user,
        "project": project,
        "roles": [item.value for item in role] if role else None,
        "service_class": service_class,
        "expires_at": expires_at,
        "tags": tags_of(tag) or None,
    }
    _secret(server.post("/v1/admin/keys", body), as_json=as_json)


@keys.command("rotate")
def rotate_key(
    key_id: Annotated[str, typer.Argument(help="The key's id; 'key list' shows it.")],
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Replace a key's secret by a new one, shown this once."""
    server = connect(admin_url, token, state_dir)
    _secret(server.post(f"/v1/admin/keys/{segment(key_id)}/rotate", {}), as_json=as_json)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id; 'key list' shows it.")],
    reason: Reason = "",
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Revoke a key for good. Holds within a second, running streams included."""
    server = connect(admin_url, token, state_dir)
    done = server.post(f"/v1/admin/keys/{segment(key_id)}/revoke", {"reason": reason or None})
    if as_json:
        document(done)
    else:
        say(f"Revoked key {key_id}.")


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List keys by id. Secrets are stored nowhere and cannot be shown."""
    server = connect(admin_url, token, state_dir)
    found = server.get("/v1/admin/keys", {"tenant": tenant})
    if as_json:
        document(found)
        return
    rows = rows_of(found, "keys")
    if rows:
        table(rows)
    else:
        say("No keys. 'lockgate key create' makes one.")


def rows_of(found: object, name: str) -> list[dict[str, object]]:
    """A list by itself, or the list that an object holds under `name`, `data` or `rows`."""
    if isinstance(found, dict):
        found = next((found[key] for key in (name, "data", "rows") if key in found), [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise Refusal(
            "The server's answer has another shape than expected. Are both of one version?"
        )
    return found


def _secret(made: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        document(made)
        return
    say(str(made.get("secret", "")))
    pairs({name: value for name, value in made.items() if name != "secret"})
    note("The secret is shown this once; keep it where secrets are kept.")
