"""What a gateway and an executor say about kept prefixes (a part of `contract`, which shows all of it).

The gateway decides who may share what and makes labels' pseudonyms and keys; the executor keeps blocks
under them and knows no label's meaning.  Nothing here comes from a client.  Source: SECURITY.md §2;
DESIGN.md, settled questions 2 to 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Final, NamedTuple

import msgspec

SCOPES_MAX: Final = 64
COVERS_MAX: Final = 1024
"""Of one scope, and the tags of one `Revoke` or `Purge`."""
OWNERS_MAX: Final = 65_536
KEPT_MAX: Final = 1024
"""Rows of one `Listed`."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """One label of a prompt: from where the last ended up to `until` tokens.  Labels only rise, and pinned
    ones come first; the last ends with the prompt, and what is generated has it too.

    `label` is 32 bytes, a pseudonym, compared on every hit; `key` 32 bytes, never shown.  `pinned`: what is kept
    under it came of a warm submit; requests neither make, refresh nor evict it.  `disclosed` False
    (opportunistic sharing): a hit saves computing, and is ordered, charged and told as a miss.  `covers`:
    pseudonyms of what the right to it rests on (a document at its ACL version, a template's, a tenant's
    secret's, a person); the same for all who name this label.  A `Revoke` of the label or of a cover ends it.
    `kind`: what sort of label it is, for who lists; it means nothing here and is compared with nothing."""

    until: int
    label: bytes
    key: bytes
    kind: str = ""
    pinned: bool = False
    disclosed: bool = True
    covers: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"Scope(until={self.until}, pinned={self.pinned}, disclosed={self.disclosed})"


class Caching(msgspec.Struct, frozen=True, kw_only=True):
    """Under which labels the blocks of a prompt may be found and kept.  `owner`: whose part of the pool it
    uses; the tenant's name in `Submit.share`.  `context`: 32 bytes, `policies.scope.context.Asked.digest()`; what computes is
    mixed in by the executor.  `snapshot`: of the policy that decided; where a `Revoke` of its labels or
    covers is newer, the request ends with `Cause.REVOKED`.  What it keeps ends `idle_ms` after the last use
    (not so where pinned) and `absolute_ms` after it was kept; None, of a warm submit alone: when it is revoked,
    purged or over its owner's quota, and not before."""

    owner: str
    context: bytes
    scopes: tuple[Scope, ...]
    snapshot: int
    idle_ms: int
    absolute_ms: int | None

    def ended_by(self, tags: frozenset[bytes], snapshot: int) -> bool:
        """Whether a `Revoke` of these ends what was decided so."""
        return self.snapshot < snapshot and any(
            scope.label in tags or not tags.isdisjoint(scope.covers) for scope in self.scopes
        )

    def __repr__(self) -> str:
        return f"Caching(scopes={len(self.scopes)}, snapshot={self.snapshot})"


class Revoke(msgspec.Struct, frozen=True, kw_only=True, tag="revoke"):
    """By labels or covers: nothing kept under one of `tags` is found from now on, and requests that name one
    and were decided by an older policy than `snapshot` end within one step.  Answered by `Revoked`."""

    number: int
    tags: tuple[bytes, ...]
    snapshot: int

    def __repr__(self) -> str:
        return f"Revoke(number={self.number}, tags={len(self.tags)}, snapshot={self.snapshot})"


class Purge(msgspec.Struct, frozen=True, kw_only=True, tag="purge"):
    """What `owner` has (None: everybody) under one of `tags`, labels or covers (none: under any), is forgotten
    now; who reads it ends with `Cause.REVOKED`, and who else runs under it keeps nothing of what it computed
    before.  `spare`: whoever reads it goes on, and it is wiped when the last has ended.  Answered by `Purged`."""

    number: int
    owner: str | None = None
    tags: tuple[bytes, ...] = ()
    spare: bool = False

    def __repr__(self) -> str:
        return f"Purge(number={self.number}, tags={len(self.tags)}, spare={self.spare})"

    def covers(self, caching: Caching) -> bool:
        """Whether a request so decided runs under what is purged."""
        tags = frozenset(self.tags)
        return self.owner in {None, caching.owner} and (
            not tags
            or any(
                scope.label in tags or not tags.isdisjoint(scope.covers) for scope in caching.scopes
            )
        )


class ListKept(msgspec.Struct, frozen=True, kw_only=True, tag="list_kept"):
    """What does `owner` (None: everybody) have?  Answered by `Listed`."""

    number: int
    owner: str | None = None
    by_label: bool = False


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """`part` of the pool is `owner`'s; `pinned` of that part is for what is registered, the rest for what
    requests keep.  Neither takes of the other, else whether a registration finds room were traffic's doing."""

    owner: str
    part: float
    pinned: float = 0.5


class Allotted(NamedTuple):
    """Blocks of the pool, for what requests keep and for what is registered."""

    kept: int
    pinned: int


def allotted(quotas: Iterable[Quota], pool_blocks: int) -> dict[str, Allotted]:
    """What each owner's quota comes to, among all of them."""
    named = {each.owner: each for each in quotas}
    scale = pool_blocks / max(1.0, sum(_at_least_0(each.part) for each in named.values()))
    found = {}
    for owner, quota in named.items():
        whole = int(_at_least_0(quota.part) * scale)
        pinned = int(min(1.0, _at_least_0(quota.pinned)) * whole)
        found[owner] = Allotted(whole - pinned, pinned)
    return found


def _at_least_0(part: float) -> float:
    """What is no part is none."""
    return part if isfinite(part) and part > 0 else 0.0


class Quotas(msgspec.Struct, frozen=True, kw_only=True, tag="quotas"):
    """Who may keep how much, from now on.  Who is not named keeps nothing.  If the parts add up to more than
    1, all are scaled down alike: a quota follows from the configuration alone.  What is over a new quota goes
    at once."""

    quotas: tuple[Quota, ...]


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """Said when nothing of it is found or read any more and all of it is wiped: `entries` of one block each;
    `zeroed`: the memory was read back and is zero.  `ended`: requests."""

    number: int
    entries: int
    ended: int
    zeroed: bool


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """As `Revoked`; of what was spared `zeroed` says nothing."""

    number: int
    entries: int
    ended: int
    zeroed: bool


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one owner under labels of one kind, or (`label`) under one of them.  Blocks can be found
    now; `pinned` of them are registered; `oldest_ms` since the first of them was kept."""

    owner: str
    kind: str
    label: bytes = b""
    labels: int = 1
    blocks: int
    pinned: int
    oldest_ms: int


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Those with most blocks first, `left_out` of them not named."""

    number: int
    rows: tuple[Kept, ...]
    left_out: int = 0


def held_for(caching: Caching, prompt_tokens: int) -> int:
    """About the memory that it takes while its request waits, with what is computed of it."""
    covers = sum(len(scope.covers) for scope in caching.scopes)
    return 1_000 + 400 * len(caching.scopes) + 80 * covers + 20 * prompt_tokens
