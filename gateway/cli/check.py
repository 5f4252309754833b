"""`lockgate check`: is the configuration right, and what may this principal do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gateway.cli.client import connect
from gateway.cli.diagnosis import redis
from gateway.cli.doctor import redis_facts
from gateway.cli.options import VAR, AdminUrl, Json, StateDir, Tags, Token, tags_of
from gateway.cli.serve import Config
from gateway.cli.show import Refusal, document, pairs, say
from gateway.service_classes import terms_view
from gateway.settings import Settings, SettingsError, facts, load
from gateway.settings.shape import BATCH_SIZE, BATCH_WAIT_MS, Batching, Budget, Issuer, Model
from policies.tags import spelt


def check(
    config: Config = None,
    tenant: Annotated[str | None, typer.Option(help="Whose standing to show.")] = None,
    user: Annotated[str | None, typer.Option(help="A user of the tenant.")] = None,
    project: Annotated[str | None, typer.Option(help="A project of the tenant.")] = None,
    issuer: Annotated[
        str | None,
        typer.Option(help="Who issues the user's tokens [as yours]; lockgate:keys for API keys."),
    ] = None,
    tag: Tags = None,
    state_dir: StateDir = VAR,
    admin_url: AdminUrl = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Check a configuration file, or show what a tenant's user may do on the running server.

    With --config nothing runs and no server is asked but the Redis that it names; with --tenant and no --config the running
    server answers.
    """
    tags = [spelt(*each) for each in tags_of(tag).items()]
    if (user or project or tags) and not tenant:
        raise Refusal("--user, --project and --tag belong to a tenant. Give --tenant.")
    if config is not None:
        try:
            settings = load(config, os.environ, now_s=int(time.time()))
        except SettingsError as error:
            if as_json:
                document({"ok": False, "faults": [_fault(fault) for fault in error.faults]})
                raise typer.Exit(1) from None
            raise Refusal(str(error)) from None
        _show(config, settings, tenant, project, tags, as_json=as_json)
        return
    if tenant is None:
        raise Refusal("Nothing to check. Give --config FILE, or --tenant and --user.", exit_code=2)
    server = connect(admin_url, token, state_dir)
    asked: dict[str, object] = {"tenant": tenant, "user": user, "project": project}
    asked |= {"issuer": issuer, "tag": tags or None}
    standing = server.get("/v1/admin/check", asked)
    if as_json:
        document(standing)
    else:
        pairs(flat(standing))


def _show(
    config: Path,
    settings: Settings,
    tenant: str | None,
    project: str | None,
    tags: Sequence[str],
    *,
    as_json: bool,
) -> None:
    standing = None if tenant is None else from_file(settings, tenant, project, tags)
    if as_json:
        seen = redis_facts(settings)
        document(
            {
                "ok": True,
                "notices": settings.notices,
                "standing": standing,
                "redis": None if seen is None else asdict(seen),
            }
        )
        return
    say(f"{config} is right.")
    pairs(
        {
            "public": str(settings.listen.public),
            "admin": str(settings.listen.admin),
            "models": [_model(item) for item in settings.models],
            "issuers": [_issuer(item) for item in settings.issuers],
            "tenants": [f"{name} ({item.plan})" for name, item in settings.tenants.items()],
        }
    )
    for sentence in settings.notices:
        say(f"note: {sentence}")
    if (facts_of_redis := redis_facts(settings)) is not None:
        found = redis(facts_of_redis)
        say(f"{found.verdict.value}: Redis {found.found}. {found.fix}".rstrip())
    if standing is not None:
        say("")
        pairs(flat(standing))


def from_file(
    settings: Settings, tenant: str, project: str | None, tags: Sequence[str] = ()
) -> dict[str, Any]:
    """What the file alone grants; keys, suspensions and later budgets are known to the server only."""
    found = settings.tenants.get(tenant)
    if found is None:
        names = ", ".join(sorted(settings.tenants)) or "none"
        raise Refusal(f"There is no tenant {tenant!r} in the file. It has: {names}.")
    plan = settings.plans[found.plan]
    budgets = {"tenant": _budget(plan.budget)}
    if project is not None:
        if project not in found.projects:
            names = ", ".join(sorted(found.projects)) or "none"
            raise Refusal(
                f"Tenant {tenant} has no project {project!r} in the file. It has: {names}."
            )
        budgets["project"] = _budget(found.projects[project].budget)
    for tag in tags:
        if tag in found.tags:
            budgets[f"tag {tag}"] = _budget(found.tags[tag].budget)
    return {
        "tenant": tenant,
        "plan": found.plan,
        "models": plan.models,
        "classes": plan.classes,
        "class_terms": {
            name: terms_view(each)
            for name, each in facts.service_classes(settings.classes).items()
            if name in plan.classes
        },
        "batching": {
            item.name: item.batching.value for item in settings.models if item.name in plan.models
        },
        "limits": {
            "tenant": _given(msgspec.to_builtins(plan.limits)),
            "user": _given(msgspec.to_builtins(plan.user_limits)),
        },
        "budgets": budgets,
    }


def _issuer(item: Issuer) -> str:
    nonce = " and a nonce" if item.dpop_nonce else ""
    return f"{item.issuer} (dpop {item.dpop.value}{nonce})"


def _model(item: Model) -> str:
    batching = f"{item.batching.value} batching"
    if item.batching is not Batching.CONTINUOUS:
        batching += f" of {item.batch_size or BATCH_SIZE}"
    if item.batching is Batching.DYNAMIC:
        batching += f" within {item.batch_wait_ms or BATCH_WAIT_MS} ms"
    return f"{item.name} ({item.numerics}, {item.device}, {batching})"


def _budget(budget: Budget | None) -> dict[str, Any] | None:
    if budget is None:
        return None
    return {
        "usd": str(budget.usd),
        "window": budget.window.value,
        "zone": str(budget.zone),
        "hard": budget.hard,
        "till": budget.till,
    }


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables and lists of them as lines: `limits user rpm`, `budgets tenant limit_usd`."""
    lines: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict) and item:
            lines |= flat(item, f"{prefix}{name} ")
        elif isinstance(item, list) and item and all(isinstance(part, dict) for part in item):
            for index, part in enumerate(item):
                lines |= flat(part, f"{prefix}{name} {part.get('scope', index)} ")
        else:
            lines[f"{prefix}{name}"] = item
    return lines


def _fault(fault: Any) -> dict[str, str]:
    return {
        "path": fault.path,
        "wrong": fault.wrong,
        "expected": fault.expected,
        "fix": fault.fix,
    }
