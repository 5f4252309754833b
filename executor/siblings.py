"""Choices of one prompt: one computes it, the others wait for that and read the same blocks.

A request may name another of its connection as its sibling.  If that one lives and has the same
prompt, share and labels, it leads: the follower joins the queue only when the leader's prompt is
computed, and on admission takes the blocks before the last prompt token by reference.  Who leads
follows nobody, so nobody waits in a circle.  When a leader ends, the follower that is furthest leads
the others; with nothing computed yet it computes the prompt itself.  Anything else than a living
sibling of the same words is as if none had been named.

Refuses to know: block ids, the queues, the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from executor.sequence import Key, Sequence

_ALIKE: Final = ("prompt", "share", "caching", "warm")


class Siblings:
    """Owned by the engine.  A step looks at each leader that is waited for, not at each that waits."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._held: dict[Key, dict[Key, Sequence]] = {}  # by leader
        self._freed: dict[Key, Sequence] = {}  # held until now; their leader is no more
        self._followers: dict[Key, dict[Key, Sequence]] = {}
        self._count = 0

    @property
    def held(self) -> Iterator[Sequence]:
        """They stand in no queue yet."""
        for group in (self._freed, *self._held.values()):
            yield from group.values()

    @property
    def held_count(self) -> int:
        return self._count

    def file(self, seq: Sequence, known: Mapping[Key, Sequence]) -> None:
        """A newcomer: find its leader among the living, if it named one."""
        if seq.job.sibling is None or not seq.sharable(self._block_tokens):
            return
        named = known.get((seq.key[0], seq.job.sibling))
        if named is None or named is seq:
            return
        if any(getattr(named.job, each) != getattr(seq.job, each) for each in _ALIKE):
            return
        seq.leader = named.leader or named
        self._followers.setdefault(seq.leader.key, {})[seq.key] = seq

    def hold(self, seq: Sequence) -> bool:
        """Whether it may not queue yet, since its leader is still at the prompt."""
        if seq.leader is None or self._is_ready(seq.leader):
            return False
        self._held.setdefault(seq.leader.key, {})[seq.key] = seq
        self._count += 1
        return True

    def ready(self) -> Iterator[Sequence]:
        """Those held whose wait is over."""
        groups = [self._freed] if self._freed else []
        self._freed = {}
        for key, group in list(self._held.items()):
            leader = next(iter(group.values())).leader
            assert leader is not None, "it would be among the freed"
            if self._is_ready(leader):
                groups.append(self._held.pop(key))
        for group in groups:
            self._count -= len(group)
            yield from group.values()

    def forget(self, seq: Sequence) -> bool:
        """It ended.  True if it was held, and so stood in no queue."""
        held = self._let_go(seq)
        if seq.leader is not None:
            del self._followers[seq.leader.key][seq.key]
            seq.leader = None
        orphans = self._followers.pop(seq.key, None)
        if orphans:
            self._inherit(seq.key, orphans)
        return held

    def _inherit(self, gone: Key, orphans: dict[Key, Sequence]) -> None:
        heir = max(orphans.values(), key=lambda one: one.computed)  # of several the first
        del orphans[heir.key]
        heir.leader = None
        for one in orphans.values():
            one.leader = heir
        if orphans:
            self._followers[heir.key] = orphans
        held = self._held.pop(gone, {})
        if held.pop(heir.key, None) is not None:
            self._freed[heir.key] = heir
        if held:
            self._held[heir.key] = held

    def _let_go(self, seq: Sequence) -> bool:
        if self._freed.pop(seq.key, None) is None:
            group = self._held.get(seq.leader.key, {}) if seq.leader is not None else {}
            if group.pop(seq.key, None) is None:
                return False
            if not group:
                assert seq.leader is not None
                del self._held[seq.leader.key]
        self._count -= 1
        return True

    def _is_ready(self, leader: Sequence) -> bool:
        return leader.computed >= leader.sharable(self._block_tokens) * self._block_tokens
