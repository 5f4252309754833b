"""The registry of documents and templates as the house has it: what it is wired of."""

from __future__ import annotations

import secrets as random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from executor.contract import Executor, ExecutorLost
from gateway.house import Clock, Deployment
from gateway.live import Live
from gateway.permission import Permission
from gateway.registered import Registered
from gateway.revocations import Revocations
from security.cache_keys import CacheKeys
from security.keyring import Keyring, Purpose
from security.keyring_tenants import TenantSecrets
from security.seal import Seals
from tenants.directory import Directory
from tenants.documents import Documents, Kind
from tenants.store import Store

PREFIXES = {Kind.DOCUMENT: "doc_", Kind.TEMPLATE: "tmpl_"}


@dataclass(frozen=True, slots=True)
class ExecutorRevoker:
    """`gateway.revocations.Revoker`."""

    executor: Executor

    async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> None:
        try:
            answer = await self.executor.revoke(tags, snapshot)
        except ExecutorLost:
            if self.executor.card is not None:  # it is there, and did not confirm
                raise
            return  # what comes in its place has kept nothing
        if not answer.zeroed:
            raise ExecutorLost("what was revoked does not read back as zero")


async def open_permission(
    store: Store, directory: Directory, clock: Clock, changed: Callable[[], None] = lambda: None
) -> Permission:
    """Reads all lists before anything is served.  `changed` hears of each change of ours."""
    documents = Documents(
        store,
        monotonic_ns=clock.monotonic_ns,
        wall_s=lambda: clock.wall_ms() / 1000,
        changed=changed,
    )
    await documents.load()
    return Permission(documents, directory.standing, clock.monotonic_ns)


def registered_texts(
    permission: Permission,
    keyring: Keyring,
    secrets: TenantSecrets,
    keys: CacheKeys,
    live: Live,
    deployments: Iterable[Deployment],
    log: Callable[..., None],
) -> Registered:
    public = keyring.derive(Purpose.REGISTERED_PUBLIC)
    return Registered(
        documents=permission.documents,
        permission=permission,
        secrets=secrets,
        seals=Seals(public, secrets.current, secrets.at, random.token_bytes),
        keys=keys,
        live=live,
        revocations=Revocations(tuple(ExecutorRevoker(each.executor) for each in deployments), log),
        log=log,
        mint_id=lambda kind: PREFIXES[kind] + random.token_hex(16),
    )
