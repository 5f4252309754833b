"""`lockgate document` and `lockgate template`: texts that requests refer to by id.

A text is read from a file or standard input, never from the command line, where others would see it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.client import DEMO_USER, Server, connect, segment
from gateway.cli.credentials import rows_of
from gateway.cli.options import ENV_TOKEN, VAR, AdminUrl, Json, StateDir, Token
from gateway.cli.show import Refusal, document, say, table

TEXT_BYTES_MAX = 4 * 1024 * 1024
DOCUMENTS, TEMPLATES = "/v1/admin/documents", "/v1/admin/templates"
OVERTAKEN_MAX: Final = 5
"""So often is a list read and changed anew, because somebody else changed it in between."""

documents = typer.Typer()
templates = typer.Typer()

Id = Annotated[str, typer.Argument(help="Its id, as 'add' printed it.")]
File = Annotated[Path, typer.Argument(help="The text; - reads standard input.")]
Title = Annotated[str | None, typer.Option(help="What it is called, for its readers.")]
Users = Annotated[list[str] | None, typer.Option("--user", help="May read; several times.")]
Groups = Annotated[list[str] | None, typer.Option("--group", help="Whose members may read.")]
Roles = Annotated[list[str] | None, typer.Option("--role", help="tenant_admin or finance.")]
UserToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=ENV_TOKEN,
        help="A token of the tenant: the document's owner's, or to revoke and delete its administrator's "
        f"[{DEMO_USER} in development]. The variable keeps it out of process lists.",
    ),
]
Issuer = Annotated[str | None, typer.Option(help="Who says so of them [your own issuer].")]


def read_text(path: Path) -> str:
    """Raises Refusal."""
    try:
        if str(path) == "-":
            raw = sys.stdin.buffer.read(TEXT_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(TEXT_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Refusal(f"{path} is no UTF-8 text. Convert it first.") from None
    if len(raw) > TEXT_BYTES_MAX:
        raise Refusal(f"{path} is larger than 4 MiB. Split it.")
    return text


def people(names: list[str] | None, field: str, issuer: str | None) -> list[dict[str, str]]:
    more = {} if issuer is None else {"issuer": issuer}
    return [{field: name, **more} for name in names or ()]


def listed(server: Server, path: str) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = server.get(path, {"limit": 100, "after": after})
        found += rows_of(page, "data")
        if not found or not page.get("has_more"):
            return found
        after = found[-1]["id"]


@documents.command("add")
def add_document(
    file: File,
    title: Title = None,
    user: Users = None,
    group: Groups = None,
    role: Roles = None,
    issuer: Issuer = None,
    expires_at: Annotated[
        int | None, typer.Option(help="Unix second at which it ends by itself.")
    ] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: UserToken = None,
    as_json: Json = False,
) -> None:
    """Register a document of your own, and who may have a model read it."""
    body = {
        "text": read_text(file),
        "title": title,
        "acl": {
            "users": people(user, "subject", issuer),
            "groups": people(group, "name", issuer),
            "roles": role or [],
        },
        "expires_at": expires_at,
    }
    _show(_connect(admin_url, token, state_dir).post(DOCUMENTS, body), as_json=as_json)


@documents.command("list")
def list_documents(
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: UserToken = None,
    as_json: Json = False,
) -> None:
    """List your documents and those you may read; an administrator's list has no titles."""
    _table(listed(_connect(admin_url, token, state_dir), DOCUMENTS), as_json=as_json)


@documents.command("grant")
def grant(
    id_: Id,
    user: Users = None,
    group: Groups = None,
    role: Roles = None,
    issuer: Issuer = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: UserToken = None,
    as_json: Json = False,
) -> None:
    """Let more people have a model read it."""

    def wider(acl: dict[str, Any]) -> dict[str, Any]:
        named = _named(user, group, role, issuer, _whose(acl))
        return {
            field: acl[field] + [each for each in more if each not in acl[field]]
            for field, more in named.items()
        }

    _show(_change(_connect(admin_url, token, state_dir), id_, wider), as_json=as_json)


@documents.command("revoke")
def revoke(
    id_: Id,
    user: Users = None,
    group: Groups = None,
    role: Roles = None,
    issuer: Issuer = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: UserToken = None,
    as_json: Json = False,
) -> None:
    """Take it from somebody. Answers when nothing is read by the old right any more."""
    named = _named(user, group, role, issuer, None)

    def narrower(acl: dict[str, Any]) -> dict[str, Any]:
        kept = {
            field: [each for each in acl[field] if not any(_same(each, one) for one in less)]
            for field, less in named.items()
        }
        if all(kept[field] == acl[field] for field in kept):
            raise Refusal("None of them is on its list. 'lockgate document list --json' shows it.")
        return kept

    _show(_change(_connect(admin_url, token, state_dir), id_, narrower), as_json=as_json)


@documents.command("delete")
def delete_document(
    id_: Id,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: UserToken = None,
    as_json: Json = False,
) -> None:
    """Delete a document; requests that read it end."""
    _show(
        _connect(admin_url, token, state_dir).delete(f"{DOCUMENTS}/{segment(id_)}"), as_json=as_json
    )


@templates.command("add")
def add_template(
    file: File,
    title: Title = None,
    replaces: Annotated[
        str | None, typer.Option("--version-of", help="A new version of this template.")
    ] = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Register a prompt template; an operator's is for every tenant. Variables are {{name}}."""
    server = connect(admin_url, token, state_dir)
    body = {"text": read_text(file), "title": title}
    if replaces is None:
        done = server.post(TEMPLATES, body)
    else:
        done = server.patch(f"{TEMPLATES}/{segment(replaces)}", body)
    _show(done, as_json=as_json)


@templates.command("list")
def list_templates(
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the tenant's templates and the public ones."""
    _table(listed(connect(admin_url, token, state_dir), TEMPLATES), as_json=as_json)


@templates.command("delete")
def delete_template(
    id_: Id,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Delete a template with all its versions; requests that use it end."""
    _show(
        connect(admin_url, token, state_dir).delete(f"{TEMPLATES}/{segment(id_)}"), as_json=as_json
    )


def _named(
    user: list[str] | None,
    group: list[str] | None,
    role: list[str] | None,
    issuer: str | None,
    default: str | None,
) -> dict[str, list[Any]]:
    if not (user or group or role):
        raise Refusal("Whom? Give --user, --group or --role.", exit_code=2)
    whose = issuer or default
    return {
        "users": people(user, "subject", whose),
        "groups": people(group, "name", whose),
        "roles": list(role or ()),
    }


def _whose(acl: dict[str, Any]) -> str | None:
    """The one issuer on the list, so that a name is not put there twice."""
    issuers = {each["issuer"] for each in acl["users"] + acl["groups"]}
    return issuers.pop() if len(issuers) == 1 else None


def _same(entry: Any, named: Any) -> bool:
    """Without an issuer: whoever says so."""
    if isinstance(entry, dict) and isinstance(named, dict):
        return all(entry.get(field) == value for field, value in named.items())
    return bool(entry == named)


def _connect(admin_url: str | None, token: str | None, state_dir: Path) -> Server:
    """As a tenant's user: an operator has no documents, and no right in others'."""
    return connect(admin_url, token, state_dir, name=DEMO_USER)


def _change(server: Server, id_: str, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """What `changed` makes of the list that stands, whatever others make of it at the same time."""
    path = f"{DOCUMENTS}/{segment(id_)}"
    for _ in range(OVERTAKEN_MAX):
        found = server.get(path)
        acl = found.get("acl") if isinstance(found, dict) else None
        if not isinstance(acl, dict):
            raise Refusal("Only its owner and the tenant's administrator change who may read it.")
        try:
            seen = {"acl_version": found.get("acl_version")}
            return server.put(f"{path}/acl", changed(acl) | seen)
        except Refusal as refusal:
            if refusal.facts.get("code") != "changed_meanwhile":
                raise
    raise Refusal("Others keep changing its list, so it was left as it is. Try again in a moment.")


def _table(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        document({"data": found})
    elif found:
        table([{k: each.get(k) for k in ("id", "title", "version", "tokens")} for each in found])
    else:
        say("There are none.")


def _show(done: Any, *, as_json: bool) -> None:
    if as_json or not isinstance(done, dict):
        document(done)
    elif done.get("deleted"):
        say(f"{done['id']} is deleted.")
    else:
        say(str(done["id"]))
