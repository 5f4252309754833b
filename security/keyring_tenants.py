"""Each tenant's secret: random, wrapped by a root key, kept by a store, and destroyed on demand.

Everything that is kept for a tenant hangs on its secret, so that destroying the secret destroys it.
AES-256-GCM under a key of this tenant and version alone, derived from the root that the row names;
purpose, tenant, version and root are authenticated with it, so no row can be moved to another place.
Versions only grow, also past a destruction: what was made under an old secret never comes back.

Refuses to know: how rows are kept (`SecretStore`; `tenants.secrets` satisfies it without knowing us),
what the secrets are for (`cache_keys`).  Source: SECURITY.md §2 (Keys), §6; NIST SP 800-38D.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from policies.scope.encoding import enc
from security.keyring import Keyring, KeyringError, Purpose

T = TypeVar("T")

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 12


class SecretGone(Exception):
    """There is no such secret, or no longer: what hangs on it cannot be read."""


class WrappedRow(Protocol):
    """One version of one tenant's secret as it is kept.  `root` and `wrapped` are empty once it is
    destroyed: the row stays, so that its number is not used again."""

    @property
    def tenant(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def root(self) -> str: ...
    @property
    def wrapped(self) -> bytes: ...


class SecretStore(Protocol):
    """Each call is durable when it returns, and takes effect whole or not at all."""

    async def load(self) -> Sequence[WrappedRow]: ...

    async def generation(self) -> int:
        """Another one as soon as anything of what `load` reads has changed, by whomever."""
        ...

    async def add(self, *, tenant: str, version: int, root: str, wrapped: bytes) -> bool:
        """False where there is that version already: another process has made it."""
        ...

    async def rewrap(self, rows: Iterable[tuple[str, int, str, bytes]]) -> None:
        """Tenant, version, and the root and bytes that take the place of the old ones."""

    async def destroy(self, *, tenant: str, versions: Iterable[int]) -> None:
        """Nothing of the wrapped bytes is left in the store's files afterwards."""


@dataclass(frozen=True, slots=True)
class TenantSecret:
    tenant: str
    version: int
    secret: bytes = field(repr=False)


def wrap(keyring: Keyring, tenant_secret: TenantSecret, nonce: bytes) -> tuple[str, bytes]:
    """The id of the root that wraps it, and what to keep.  `nonce`: 12 fresh random bytes."""
    assert len(tenant_secret.secret) == SECRET_BYTES
    assert len(nonce) == NONCE_BYTES
    root = keyring.root_ids[-1]
    cipher, bound = _cipher(keyring, tenant_secret.tenant, tenant_secret.version, root)
    return root, nonce + cipher.encrypt(nonce, tenant_secret.secret, bound)


def unwrap(keyring: Keyring, row: WrappedRow) -> TenantSecret:
    """KeyringError where the root is not there, or the row is not what was written."""
    cipher, bound = _cipher(keyring, row.tenant, row.version, row.root)
    nonce, sealed = row.wrapped[:NONCE_BYTES], row.wrapped[NONCE_BYTES:]
    try:
        secret = cipher.decrypt(nonce, sealed, bound)
    except (InvalidTag, ValueError):
        raise KeyringError(
            f"The secret of tenant {row.tenant!r}, version {row.version}, was altered or belongs to "
            "another root key. Restore the database and the root key file from one backup."
        ) from None
    return TenantSecret(row.tenant, row.version, secret)


def _cipher(keyring: Keyring, tenant: str, version: int, root: str) -> tuple[AESGCM, bytes]:
    key = keyring.derive(Purpose.TENANT_SECRETS, enc((tenant, version)), root=root)
    return AESGCM(key), enc((Purpose.TENANT_SECRETS.value, tenant, version, root))


class TenantSecrets:
    """All of them, unwrapped in memory.  A new one is durable first, then visible; an old one is gone
    here first, then for good.  A change goes on when its caller goes away."""

    def __init__(
        self, keyring: Keyring, store: SecretStore, *, rng: Callable[[int], bytes]
    ) -> None:
        self._keyring = keyring
        self._store = store
        self._rng = rng
        self._kept: dict[str, dict[int, TenantSecret]] = {}
        self._roots: dict[tuple[str, int], str] = {}  # of what the store still has
        self._newest: dict[str, int] = {}  # also of what is destroyed
        self._shredded: set[str] = set()
        self._generation = 0
        self._alone = asyncio.Lock()
        self._changing: set[asyncio.Task[Any]] = set()

    async def load(self) -> None:
        """Before serving.  KeyringError where one cannot be unwrapped: a lost root key is found here,
        not by the tenant who asks first."""
        self._generation = await self._store.generation()
        await self._read()

    async def refresh(self) -> frozenset[str]:
        """Read what other processes have changed.  The tenants of whom there are other versions now; what
        was kept under those that are not `current` is nobody's any more."""

        async def change() -> frozenset[str]:
            generation = await self._store.generation()
            if generation == self._generation:
                return frozenset()
            moved = await self._read()
            self._generation = generation
            return moved

        return await self._change(change)

    def current(self, tenant: str) -> TenantSecret:
        """The newest, to write with.  SecretGone."""
        kept = self._kept.get(tenant)
        if not kept:
            raise SecretGone(f"tenant {tenant!r} has no secret")
        return kept[max(kept)]

    def at(self, tenant: str, version: int) -> TenantSecret:
        """To read what names a version.  SecretGone."""
        found = self._kept.get(tenant, {}).get(version)
        if found is None:
            raise SecretGone(f"tenant {tenant!r} has no secret of version {version}")
        return found

    def is_shredded(self, tenant: str) -> bool:
        """It had secrets, and all of them were destroyed."""
        return tenant in self._shredded

    def newest(self, tenant: str) -> int:
        """The highest number that was ever given, also to one that is destroyed; 0: none."""
        return self._newest.get(tenant, 0)

    def held(self, tenant: str) -> dict[int, str]:
        """The root that wraps each version that can be used."""
        return {version: self._roots[tenant, version] for version in self._kept.get(tenant, {})}

    @property
    def known_roots(self) -> tuple[str, ...]:
        """The roots that there are, oldest first; the last one wraps."""
        return self._keyring.root_ids

    def wrapped_by(self) -> Counter[str]:
        """How many secrets each root is needed for."""
        return Counter(self._roots.values())

    def root_ids(self) -> frozenset[str]:
        """The roots that are needed to unwrap what is kept."""
        return frozenset(self._roots.values())

    async def ensure(self, tenant: str) -> TenantSecret:
        """The current one, made now for a tenant that never had one.  SecretGone where it was
        destroyed: only `rotate` begins again, and somebody must mean it."""

        async def change() -> TenantSecret:
            while not self._kept.get(tenant) and tenant not in self._shredded:
                if await self._made(tenant):
                    break
                await self._read()  # another process was first
            return self.current(tenant)

        return await self._change(change)

    async def rotate(self, tenant: str) -> TenantSecret:
        """A new version to write with; the old ones are read until they are retired."""

        async def change() -> TenantSecret:
            while not await self._made(tenant):
                await self._read()
            return self.current(tenant)

        return await self._change(change)

    async def retire(self, tenant: str, version: int) -> None:
        """Destroy an old version.  SecretGone where there is none; ValueError for the current one."""

        async def change() -> None:
            if version in self._kept.get(tenant, {}) and version == self.current(tenant).version:
                raise ValueError(f"version {version} is current; rotate first, or shred the tenant")
            if (tenant, version) not in self._roots:
                raise SecretGone(f"tenant {tenant!r} has no secret of version {version}")
            await self._destroy(tenant, [version])

        await self._change(change)

    async def shred(self, tenant: str) -> int:
        """Destroy all versions: everything under them is unreadable from now on.  How many there were;
        a tenant without any is not an error, so that it can be asked again after a failure."""

        async def change() -> int:
            versions = [version for name, version in self._roots if name == tenant]
            self._shredded.add(tenant)
            await self._destroy(tenant, versions)
            return len(versions)

        return await self._change(change)

    async def rewrap(self) -> int:
        """Wrap by the newest root whatever an older one wraps, all in one commit.  How many."""

        async def change() -> int:
            newest = self._keyring.root_ids[-1]
            old = [
                self._kept[tenant][version]
                for (tenant, version), root in self._roots.items()
                if root != newest and version in self._kept[tenant]
            ]
            rows = [
                (each.tenant, each.version, *wrap(self._keyring, each, self._rng(NONCE_BYTES)))
                for each in old
            ]
            if rows:
                await self._store.rewrap(rows)
            self._roots.update({(each.tenant, each.version): newest for each in old})
            return len(rows)

        return await self._change(change)

    async def _change(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One at a time, and to its end: half a change would leave memory and store apart."""

        async def run() -> T:
            async with self._alone:
                return await change()

        task = asyncio.get_running_loop().create_task(run())
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        return await asyncio.shield(task)

    async def _made(self, tenant: str) -> bool:
        """False where another process has used its number."""
        version = self._newest.get(tenant, 0) + 1
        made = TenantSecret(tenant, version, self._rng(SECRET_BYTES))
        root, wrapped = wrap(self._keyring, made, self._rng(NONCE_BYTES))
        self._newest[tenant] = version  # an attempt whose end is unknown uses its number up
        if not await self._store.add(tenant=tenant, version=version, root=root, wrapped=wrapped):
            return False
        self._see(made, root)
        self._shredded.discard(tenant)
        return True

    async def _read(self) -> frozenset[str]:
        """Memory as the store is.  Whose versions are others than before.  KeyringError: nothing is changed."""
        rows = await self._store.load()
        there = {(row.tenant, row.version): row for row in rows if row.wrapped}
        new = [unwrap(self._keyring, there[each]) for each in there.keys() - self._roots.keys()]
        gone = self._roots.keys() - there.keys()
        for secret in new:
            self._see(secret, there[secret.tenant, secret.version].root)
        for tenant, version in gone:
            self._kept.get(tenant, {}).pop(version, None)
        self._roots = {each: row.root for each, row in there.items()}
        for row in rows:
            self._newest[row.tenant] = max(row.version, self._newest.get(row.tenant, 0))
        self._shredded = {row.tenant for row in rows if not self._kept.get(row.tenant)}
        return frozenset(each.tenant for each in new) | frozenset(tenant for tenant, _ in gone)

    async def _destroy(self, tenant: str, versions: Sequence[int]) -> None:
        kept = self._kept.get(tenant, {})
        for version in versions:
            kept.pop(version, None)
        await self._store.destroy(tenant=tenant, versions=versions)
        for version in versions:
            self._roots.pop((tenant, version), None)

    def _see(self, secret: TenantSecret, root: str) -> None:
        self._kept.setdefault(secret.tenant, {})[secret.version] = secret
        self._roots[secret.tenant, secret.version] = root
