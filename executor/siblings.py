"""Choices of one prompt: one computes it, the others wait for that and read the same blocks.

A request may name another of its connection as its sibling.  If that one lives and has the same
prompt and the same share, it leads: the follower joins the queue only when the leader's prompt is
computed, and on admission takes the blocks before the last prompt token by reference.  Who leads
follows nobody, so nobody waits in a circle.  When a leader ends, the follower that is furthest leads
the others; with nothing computed yet it computes the prompt itself.  Anything else than a living
sibling of the same words is as if none had been named.

Refuses to know: block ids, the queues, the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from executor.sequence import Key, Sequence


class Siblings:
    """Owned by the engine."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._held: dict[Key, Sequence] = {}
        self._followers: dict[Key, list[Sequence]] = {}

    @property
    def held(self) -> Collection[Sequence]:
        """They stand in no queue yet."""
        return self._held.values()

    def file(self, seq: Sequence, known: Mapping[Key, Sequence]) -> None:
        """A newcomer: find its leader among the living, if it named one."""
        if seq.job.sibling is None or not seq.sharable(self._block_tokens):
            return
        named = known.get((seq.key[0], seq.job.sibling))
        if named is None or named is seq:
            return
        if named.job.prompt != seq.job.prompt or named.job.share != seq.job.share:
            return
        seq.leader = named.leader or named
        self._followers.setdefault(seq.leader.key, []).append(seq)

    def hold(self, seq: Sequence) -> bool:
        """Whether it may not queue yet, since its leader is still at the prompt."""
        if seq.leader is None or self._is_ready(seq.leader):
            return False
        self._held[seq.key] = seq
        return True

    def ready(self) -> Iterator[Sequence]:
        """Those held whose wait is over."""
        for key, seq in list(self._held.items()):
            if seq.leader is None or self._is_ready(seq.leader):
                del self._held[key]
                yield seq

    def forget(self, seq: Sequence) -> bool:
        """It ended.  True if it was held, and so stood in no queue."""
        if seq.leader is not None:
            self._followers[seq.leader.key].remove(seq)
            seq.leader = None
        orphans = self._followers.pop(seq.key, None)
        if orphans:
            heir = max(orphans, key=lambda one: one.computed)  # of several the first
            orphans.remove(heir)
            heir.leader = None
            for one in orphans:
                one.leader = heir
            self._followers[heir.key] = orphans
        return self._held.pop(seq.key, None) is not None

    def _is_ready(self, leader: Sequence) -> bool:
        return leader.computed >= leader.sharable(self._block_tokens) * self._block_tokens
