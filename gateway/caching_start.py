"""The terms of tenants' caches: put in force at the start and at a reload.

Refuses to know: what a key is for, what a request is.  Source: SECURITY.md §2 (Keys; Timing: the opt-in is
recorded); DESIGN.md, settled 5.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.caching import Caches, CacheTerms
from gateway.house import House
from gateway.permission import Permission
from security.audit import AuditEvent
from security.cache_keys import CacheKeys
from security.keyring import Keyring, Purpose
from security.keyring_tenants import TenantSecrets


def open_caches(keyring: Keyring, secrets: TenantSecrets, permission: Permission) -> Caches:
    keys = CacheKeys(keyring.derive(Purpose.CACHE_PUBLIC), keyring.epoch, secrets.current)
    return Caches(keys, keyring.pseudonymiser(), permission.to_read)


async def enforce(house: House, terms: Mapping[str, CacheTerms]) -> None:
    """Executors are told the quotas, and each tenant whose users now may, or may no longer, find what
    others of them left is recorded."""
    executors = {id(each.executor): each.executor for each in house.deployments.values()}
    changed = house.caches.enforce(terms, executors.values())
    for name, opportunistic in changed.items():
        outcome = "opportunistic" if opportunistic else "own"
        await house.audit.append(AuditEvent(kind="cache.sharing", tenant=name, outcome=outcome))
