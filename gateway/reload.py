"""SIGHUP: read the configuration again, all of it but what only a start can change.

Plans, tenants, prices, issuers and classes are replaced; [listen], [state] and [[models]] wait for the next
start, and that is said.  A file with a fault changes nothing: every fault is logged and what was in
force stays.  Budgets and suspensions that operators set stay on top.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from gateway.assembly import cache_terms, directory_config, issuer_rules, periods
from gateway.caching_start import enforce
from gateway.house import House
from gateway.recording import ensure_secrets
from gateway.settings import Mode, Settings, SettingsError, facts, load
from policies.price import PriceList
from security.audit import AuditEvent
from tenants.asks import BookFault
from tenants.directory import Directory

AT_START = ("listen", "state", "audit", "models", "webhooks")


def tell_deleted(directory: Directory, log: Callable[..., None]) -> None:
    """Who stands in the file and is no more: nobody is served by that name again."""
    for name in directory.left_out:
        log("configuration.tenant_deleted", path=f"tenants.{name}", fix="Take it out of the file.")


async def reload(house: House, settings: Settings, now_s: Callable[[], int]) -> Settings:
    """What is in force afterwards."""
    if settings.mode is Mode.DEVELOPMENT:
        house.log("configuration.kept", reason="development mode has no file")
        return settings
    try:
        fresh = await asyncio.to_thread(load, Path(settings.source), os.environ, now_s=now_s())
        prices = PriceList(tuple(facts.price(each) for each in fresh.prices))
        rules = issuer_rules(
            fresh, None, failed=lambda reason: house.log("jwks.failed", reason=reason)
        )
        config = directory_config(fresh)
        await house.book.publish_prices(prices.prices)
        await ensure_secrets(
            house.secrets, (each for each in config.tenants if not house.directory.is_deleted(each))
        )
        house.authenticator.configure(rules)
    except SettingsError as why:
        for fault in why.faults:
            house.log(
                "configuration.refused",
                path=fault.path,
                fault=fault.wrong,
                expected=fault.expected,
                fix=fault.fix,
            )
        return settings
    except (BookFault, ValueError) as why:
        house.log("configuration.refused", fault=str(why))
        return settings
    house.prices.listed = prices
    house.directory.configure(config)
    tell_deleted(house.directory, house.log)
    house.retention.periods = periods(fresh)
    executors = {id(each.executor): each.executor for each in house.deployments.values()}
    house.classes.enforce(facts.service_classes(fresh.classes), executors.values())
    await enforce(house, cache_terms(fresh))
    waiting = [name for name in AT_START if getattr(fresh, name) != getattr(settings, name)]
    if waiting:
        house.log("configuration.waiting", reason="at the next start: " + ", ".join(waiting))
    await house.audit.append(AuditEvent(kind="configuration.reloaded", outcome="done"))
    house.log("configuration.reloaded")
    return fresh
