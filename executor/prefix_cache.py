"""What was computed of prompts and is kept for later readers: one entry a block, found by its chain value.

A value says where to look and proves nothing: label, covers, parent, context and exact token ids are
compared besides, so a wrong key or a collision is a miss, and an alarm (`counts.mismatches`).

Theory of operation.  A reader holds all entries before its last, and lets go of the deepest first, so in
the order in which an owner's entries came to rest no entry stands before one that hangs on it: the oldest
can go, in O(1).  What ends otherwise (by time, by revocation) takes along all that hangs on it, which nobody
could reach any more.  An ended entry is found by nobody from that instant; its block stays in its owner's
account until the last reader lets go, then it is wiped.  Pinned entries come of registration and end with
it: no reader moves them, and what traffic left in their place (where sharing by traffic is allowed, or was)
goes when they come.  An owner evicts its own and nobody else's (P4, P5).

Refuses to know: requests, keys, whose pseudonym a label is.  Instants are the engine's, one a step.
Source: SECURITY.md §2; `policies.scope.residency`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from executor.block_manager import BlockManager
from executor.contract import Quota, Scope, allotted
from policies.scope.residency import Ttl, alive, ends_ns

_SWEEP_MAX: Final = 32
_SPARE: Final = 64


@dataclass(slots=True)
class Counts:
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    mismatches: int = 0


@dataclass(slots=True, eq=False)
class Owner:
    """`kept` (by requests) and `pinned` count blocks, ended ones that are still read included.  `rests`: those of
    the first that nobody reads, the longest at rest first."""

    kept_max: int = 0
    pinned_max: int = 0
    kept: int = 0
    pinned: int = 0
    rests: dict[Entry, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Entry:
    """One block.  No key is kept with it."""

    value: bytes
    parent: Entry | None
    context: bytes
    label: bytes
    kind: str
    covers: tuple[bytes, ...]
    tokens: bytes
    block: int
    owner: Owner
    pinned: bool
    ttl: Ttl
    created_ns: int
    used_ns: int
    children: dict[Entry, None]
    ended: bool = False

    @property
    def ends_ns(self) -> int:
        return ends_ns(self.ttl, created_ns=self.created_ns, used_ns=self.used_ns)


@dataclass(frozen=True, slots=True)
class Place:
    """A full block of a prompt, as whoever looks for it or brings it says."""

    value: bytes
    context: bytes
    scope: Scope
    tokens: bytes


class PrefixCache:
    """Owned by the engine.  The blocks are the manager's; which of them are kept is said here."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._entries: dict[bytes, Entry] = {}
        self._labels: dict[bytes, dict[Entry, None]] = {}
        self._by_block: dict[int, Entry] = {}
        self._owners: dict[str, Owner] = {}
        self._due: list[tuple[int, int, Entry]] = []
        self._numbers = count()
        self.now_ns = 0
        self.pinned = 0  # blocks
        self.counts = Counts()

    def __len__(self) -> int:
        """Those that can be found."""
        return len(self._entries)

    # Configuration and time

    def allot(self, quotas: Iterable[Quota]) -> list[Entry]:
        """New quotas, by configuration alone.  What ended for them: the longest at rest first, then
        whatever is left."""
        named = allotted(quotas, self._blocks.pool)
        for owner in self._owners.values():
            owner.kept_max = owner.pinned_max = 0
        for name, most in named.items():
            owner = self._owners.setdefault(name, Owner())
            owner.kept_max, owner.pinned_max = most.kept, most.pinned
        ended: list[Entry] = []
        for owner in self._owners.values():
            while owner.kept > owner.kept_max and owner.rests:
                ended += self.end(next(iter(owner.rests)))
        for entry in list(self._by_block.values()):
            owner = entry.owner
            if not entry.ended and (
                owner.pinned > owner.pinned_max if entry.pinned else owner.kept > owner.kept_max
            ):
                ended += self.end(entry)
        self._owners = {
            name: each
            for name, each in self._owners.items()
            if name in named or each.kept or each.pinned
        }
        return ended

    def begin(self, now_ns: int) -> None:
        """A step begins: what has ended by now goes, a bounded part of it in each step."""
        self.now_ns = now_ns
        for _ in range(_SWEEP_MAX):
            if not self._due or self._due[0][0] > now_ns:
                return
            _, _, entry = heappop(self._due)
            if entry.ended:
                continue
            if entry.ends_ns <= now_ns:
                self.end(entry)
            else:
                self._note_end(entry)

    # Look-up

    def find(self, owner: str, place: Place, parent: Entry | None) -> Entry | None:
        """What may be read there now."""
        entry = self._entries.get(place.value)
        if entry is None:
            return None
        if not _is(entry, place, parent):
            self.counts.mismatches += 1
            return None
        if not entry.pinned and (place.scope.pinned or entry.owner is not self._owners.get(owner)):
            return None  # the same, left by requests, where only what is registered counts
        created_ns, used_ns = entry.created_ns, entry.used_ns
        if not alive(entry.ttl, created_ns=created_ns, used_ns=used_ns, now_ns=self.now_ns):
            self.end(entry)
            return None
        return entry

    def read(self, entry: Entry) -> None:
        """Somebody holds its block from now on."""
        if not entry.pinned:
            entry.owner.rests.pop(entry, None)
            entry.used_ns = self.now_ns

    def rest(self, blocks: Iterable[int]) -> None:
        """Nobody reads these any more; the deepest come first."""
        for block in blocks:
            entry = self._by_block[block]
            if entry.ended:
                self._forget(entry)
            elif not entry.pinned:
                entry.used_ns = self.now_ns
                entry.owner.rests[entry] = None

    # What comes

    def keep(
        self, owner: str, place: Place, parent: Entry | None, ttl: Ttl, block: int
    ) -> Entry | None:
        """A full block of a request's own that was computed.  None: it is not kept, and nothing that hangs
        on it can be."""
        account = self._owners.get(owner)
        if account is None or place.scope.pinned or not self._fits_in(place, parent):
            return None
        if account.kept >= account.kept_max and account.rests:
            self.counts.evictions += 1
            self.end(next(iter(account.rests)))
        if account.kept >= account.kept_max or self._blocks.kept >= self._blocks.pool:
            return None  # all is read, or others read what is over a quota that was lowered
        account.kept += 1
        return self._insert(account, place, parent, ttl, block, pinned=False)

    def pin(
        self, owner: str, places: Seq[Place], parent: Entry | None, ttl: Ttl, blocks: Seq[int]
    ) -> bool:
        """The blocks of a registration that come after `parent`: all of them are kept, or none.  What requests
        left in their place goes, with all that hangs on it."""
        if not places:
            return True
        if not self.has_room(owner, len(places)):
            return False
        left = self._entries.get(places[0].value)
        if left is not None and not left.pinned and _is(left, places[0], parent):
            self.end(left)
        account = self._owners[owner]
        if not self._fits_in(places[0], parent):
            return False
        if len(places) > self._blocks.pool - self._blocks.kept:
            return False  # others read what is over a quota that was lowered
        account.pinned += len(places)
        self.pinned += len(places)
        for place, block in zip(places, blocks, strict=True):
            parent = self._insert(account, place, parent, ttl, block, pinned=True)
        return True

    def has_room(self, owner: str, count: int) -> bool:
        """Whether so many more could be pinned: a matter of quotas and registrations alone."""
        account = self._owners.get(owner)
        return account is not None and count <= account.pinned_max - account.pinned

    def renew(self, owner: str, entry: Entry, ttl: Ttl) -> None:
        """Registered again: an owner's pinned entry begins anew."""
        if entry.pinned and entry.owner is self._owners.get(owner):
            entry.created_ns, entry.ttl = self.now_ns, ttl
            self._note_end(entry)

    # What goes

    def end(self, entry: Entry) -> list[Entry]:
        """It and all that hangs on it is found no more."""
        ended, stack = [], [entry]
        while stack:
            one = stack.pop()
            if one.ended:
                continue
            one.ended = True
            ended.append(one)
            stack.extend(one.children)
            one.children.clear()
            del self._entries[one.value]
            if one.parent is not None:
                one.parent.children.pop(one, None)
            under = self._labels[one.label]
            del under[one]
            if not under:
                del self._labels[one.label]
            one.owner.rests.pop(one, None)
            if not self._blocks.is_held(one.block):
                self._forget(one)
        return ended

    def revoke(self, tags: frozenset[bytes]) -> list[Entry]:
        """What is under one of these labels, or rests on one of these covers, ends."""
        chosen = [
            under
            for label, under in self._labels.items()
            if label in tags or not tags.isdisjoint(_covers(under))
        ]
        return [gone for under in chosen for entry in list(under) for gone in self.end(entry)]

    def purge(self, owner: str | None, tags: frozenset[bytes]) -> list[Entry]:
        """The same of one owner; without tags all that is theirs."""
        whose = None if owner is None else self._owners.get(owner, Owner())
        chosen = [
            entry
            for label, under in self._labels.items()
            if not tags or label in tags or not tags.isdisjoint(_covers(under))
            for entry in under
            if whose is None or entry.owner is whose
        ]
        return [gone for entry in chosen for gone in self.end(entry)]

    def listed(self, owner: str | None) -> Iterator[tuple[str, Entry]]:
        """What can be found, with the name of whose it is.  O(entries)."""
        names = {id(each): name for name, each in self._owners.items()}
        for entry in self._entries.values():
            name = names[id(entry.owner)]
            if owner in {None, name} and entry.ends_ns > self.now_ns:
                yield name, entry

    # Within

    def _fits_in(self, place: Place, parent: Entry | None) -> bool:
        """Whether it can be found there later: nobody else brought it, nor ended what it hangs on, nor says
        that its label rests on something else."""
        if place.value in self._entries or (parent is not None and parent.ended):
            return False
        under = self._labels.get(place.scope.label)
        if under is not None and _covers(under) != place.scope.covers:
            self.counts.mismatches += 1
            return False
        return True

    def _insert(
        self,
        owner: Owner,
        place: Place,
        parent: Entry | None,
        ttl: Ttl,
        block: int,
        *,
        pinned: bool,
    ) -> Entry:
        scope = place.scope
        entry = Entry(
            value=place.value,
            parent=parent,
            context=place.context,
            label=scope.label,
            kind=scope.kind,
            covers=scope.covers,
            tokens=place.tokens,
            block=block,
            owner=owner,
            pinned=pinned,
            ttl=ttl,
            created_ns=self.now_ns,
            used_ns=self.now_ns,
            children={},
        )
        self._blocks.keep(block)
        self._entries[entry.value] = self._by_block[block] = entry
        self._labels.setdefault(entry.label, {})[entry] = None
        if parent is not None:
            parent.children[entry] = None
        self._note_end(entry)
        return entry

    def _note_end(self, entry: Entry) -> None:
        if len(self._due) > 2 * len(self._entries) + _SPARE:  # most of them have gone otherwise
            self._due = [each for each in self._due if not each[2].ended]
            heapify(self._due)
        heappush(self._due, (entry.ends_ns, next(self._numbers), entry))

    def _forget(self, entry: Entry) -> None:
        """Nobody reads it and nobody can find it: its block is to be wiped."""
        del self._by_block[entry.block]
        if entry.pinned:
            entry.owner.pinned -= 1
            self.pinned -= 1
        else:
            entry.owner.kept -= 1
        self._blocks.forget(entry.block)

    def check(self) -> None:
        """The books agree.  For tests: O(entries)."""
        living = set(self._entries.values())
        assert len(self._by_block) == self._blocks.kept
        assert living == {each for each in self._by_block.values() if not each.ended}
        assert living == {each for under in self._labels.values() for each in under}
        for owner in self._owners.values():
            mine = [each for each in self._by_block.values() if each.owner is owner]
            assert owner.pinned == sum(each.pinned for each in mine)
            assert owner.kept == len(mine) - owner.pinned
            resting = {e for e in mine if not e.pinned and not self._blocks.is_held(e.block)}
            assert set(owner.rests) == resting, "what is read could be evicted, or what rests not"
            seen: set[Entry] = set()
            for each in owner.rests:
                assert all(child in seen or child.pinned for child in each.children)
                seen.add(each)
        for each in self._by_block.values():
            assert not each.ended or self._blocks.is_held(each.block)
            assert each.parent is None or each.ended or not each.parent.ended
        assert self.pinned == sum(owner.pinned for owner in self._owners.values())


def _is(entry: Entry, place: Place, parent: Entry | None) -> bool:
    """Whether it is what its value says."""
    scope = place.scope
    return (
        entry.label == scope.label
        and entry.covers == scope.covers
        and entry.parent is parent
        and entry.context == place.context
        and entry.tokens == place.tokens
    )


def _covers(under: dict[Entry, None]) -> tuple[bytes, ...]:
    """The same for all of one label."""
    return next(iter(under)).covers
