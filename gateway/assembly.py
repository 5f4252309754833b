"""Settings as the arguments of the house's parts.  Mappings and nothing more: nothing is started here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.caching import CacheTerms
from gateway.development import Development
from gateway.settings import Settings, facts
from gateway.settings.shape import BATCH_SIZE, BATCH_WAIT_MS, Issuer, Model, Sharing
from security.authenticate import KEY_ISSUER, Authenticator
from security.jwks_source import JwksSource, open_source
from security.keyring import Keyring, Purpose
from security.proving import Proving, Spent
from security.tokens import ClaimNames, IssuerRule
from tenants.config import DirectoryConfig, PlanConfig, ProjectConfig, TenantConfig
from tenants.directory import Directory
from tenants.retention import Periods, Retention
from tenants.store import Store

DEV_STALE_S = 3600


def executor_command(model: Model, path: Path, threads: int | None) -> list[str]:
    """`-P`: what is run is what is installed, not what lies in the folder that we stand in."""
    command = [sys.executable, "-P", "-m", "executor", "--model", str(path)]
    command += ["--numerics", model.numerics.value, "--device", model.device.value]
    command += ["--context-tokens", str(model.context_tokens)]
    if model.kv_memory.size_bytes is not None:
        command += ["--kv-memory", str(model.kv_memory.size_bytes)]
    command += ["--batching", model.batching.value]
    command += ["--batch-size", str(model.batch_size or BATCH_SIZE)]
    command += ["--batch-wait-ms", str(model.batch_wait_ms or BATCH_WAIT_MS)]
    if threads is not None:
        command += ["--threads", str(threads)]
    return command


def issuer_rules(
    settings: Settings, development: Development | None, *, failed: Callable[[str], None]
) -> list[tuple[IssuerRule, JwksSource]]:
    """`failed` hears why a key set could not be read."""
    rules = [_rule(issuer, failed) for issuer in settings.issuers]
    if development is not None:
        where = str(development.jwks_path)
        rules.append((development.rule, _source(where, DEV_STALE_S, failed)))
    return rules


def _rule(issuer: Issuer, failed: Callable[[str], None]) -> tuple[IssuerRule, JwksSource]:
    claims = issuer.claims
    rule = IssuerRule(
        issuer=str(issuer.issuer),  # plain: it is spelt into ids, where only plain text may stand
        audience=str(issuer.audience),
        algorithms=tuple(each.value for each in issuer.algorithms),
        typ=tuple(each.value for each in issuer.typ),
        leeway_s=issuer.leeway_s,
        binding=issuer.dpop,
        nonce=issuer.dpop_nonce,
        claims=ClaimNames(
            tenant=claims.tenant,
            user=claims.user,
            project=claims.project,
            groups=claims.groups,
            roles=claims.roles,
            service_class=claims.service_class,
            tags=claims.tags,
        ),
    )
    return rule, _source(str(issuer.jwks), issuer.max_stale_s, failed)


def authenticator(
    settings: Settings,
    rules: Sequence[tuple[IssuerRule, JwksSource]],
    keyring: Keyring,
    directory: Directory,
    proofs: Spent,
    clock_s: Callable[[], float],
) -> Authenticator:
    """Who asks.  Where used proofs are remembered by this process alone, none from before its start passes."""
    return Authenticator(
        rules,
        keys=directory,
        revocations=directory,
        pepper=keyring.derive(Purpose.API_KEYS),
        clock_s=clock_s,
        proving=Proving(
            spent=proofs,
            digest=keyring.proofs(),
            urls=settings.listen.urls,
            since_s=None if settings.state.redis_url else int(clock_s()),
        ),
    )


def _source(where: str, max_stale_s: int, failed: Callable[[str], None]) -> JwksSource:
    return open_source(where, max_stale_s=max_stale_s, clock=time.monotonic, on_failure=failed)


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
                documents=plan.limits.documents,
                document_tokens=plan.limits.document_tokens,
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
                tags={
                    tag: facts.budget(of.budget)
                    for tag, of in tenant.tags.items()
                    if of.budget is not None
                },
            )
            for name, tenant in settings.tenants.items()
        },
    )


def periods(settings: Settings) -> Periods:
    """Of retention; None: for ever."""
    kept = settings.retention
    return Periods(
        user_ids_days=kept.user_ids_days or None,
        request_days=kept.request_days or None,
        notices_days=kept.notices_days or None,
    )


def retention_of(
    settings: Settings, store: Store, keyring: Keyring, clock_ms: Callable[[], int]
) -> Retention:
    return Retention(
        store, keyring.forgotten(), clock_ms, os.urandom, KEY_ISSUER, periods(settings)
    )


def cache_terms(settings: Settings) -> dict[str, CacheTerms]:
    """By tenant."""
    terms = {}
    for name, tenant in settings.tenants.items():
        cache = settings.plans[tenant.plan].cache
        terms[name] = CacheTerms(
            quota=cache.quota,
            ttl_s=cache.ttl_s,
            opportunistic=cache.sharing is Sharing.TENANT,
            region=tenant.residency,
        )
    return terms
