"""Settings as the arguments of the house's parts.  Mappings and nothing more: nothing is started here."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gateway.development import Development
from gateway.house import Clock
from gateway.settings import Settings, facts
from gateway.settings.shape import Issuer, Model
from security.authenticate import Authenticator
from security.jwks_source import FileReader, JwksSource, UrlReader
from security.keyring import Keyring, Purpose
from security.tokens import ClaimNames, IssuerRule
from tenants.config import DirectoryConfig, PlanConfig, ProjectConfig, TenantConfig
from tenants.directory import Directory


def executor_command(model: Model, path: Path, threads: int | None) -> list[str]:
    command = [sys.executable, "-m", "executor", "--model", str(path)]
    command += ["--numerics", model.numerics.value, "--device", model.device.value]
    command += ["--context-tokens", str(model.context_tokens)]
    if model.kv_memory.size_bytes is not None:
        command += ["--kv-memory", str(model.kv_memory.size_bytes)]
    if threads is not None:
        command += ["--threads", str(threads)]
    return command


def authenticator(
    settings: Settings,
    keyring: Keyring,
    directory: Directory,
    development: Development | None,
    clock: Clock,
) -> Authenticator:
    rules = [_rule(issuer) for issuer in settings.issuers]
    if development is not None:
        rules.append((development.rule, _source(FileReader(development.jwks_path), 3600)))
    return Authenticator(
        rules,
        keys=directory,
        revocations=directory,
        pepper=keyring.derive(Purpose.API_KEYS),
        clock_s=lambda: clock.wall_ms() / 1000,
    )


def _rule(issuer: Issuer) -> tuple[IssuerRule, JwksSource]:
    claims = issuer.claims
    rule = IssuerRule(
        issuer=issuer.issuer,
        audience=issuer.audience,
        algorithms=tuple(each.value for each in issuer.algorithms),
        typ=issuer.typ,
        leeway_s=issuer.leeway_s,
        claims=ClaimNames(
            tenant=claims.tenant,
            user=claims.user,
            project=claims.project,
            groups=claims.groups,
            roles=claims.roles,
            service_class=claims.service_class,
        ),
    )
    where = str(issuer.jwks)
    reader = UrlReader(where) if "://" in where else FileReader(Path(where))
    return rule, _source(reader, issuer.max_stale_s)


def _source(reader: FileReader | UrlReader, max_stale_s: int) -> JwksSource:
    return JwksSource(reader, clock=time.monotonic, max_stale_s=max_stale_s)


def directory_config(settings: Settings) -> DirectoryConfig:
    return DirectoryConfig(
        plans={
            name: PlanConfig(
                models=plan.models,
                classes=plan.classes,
                weight=plan.weight,
                limits=facts.limits(plan.limits),
                user_limits=facts.limits(plan.user_limits),
                budget=None if plan.budget is None else facts.budget(plan.budget),
            )
            for name, plan in settings.plans.items()
        },
        tenants={
            name: TenantConfig(
                plan=tenant.plan,
                residency=tenant.residency,
                projects={
                    project: ProjectConfig(
                        budget=None if of.budget is None else facts.budget(of.budget)
                    )
                    for project, of in tenant.projects.items()
                },
            )
            for name, tenant in settings.tenants.items()
        },
    )
