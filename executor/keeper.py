"""What an engine asks of the kept prefixes, and what a gateway orders of them: the one door to both.

A revocation is obeyed within the step that hears of it: nothing is found any more, whoever was decided by an older
policy ends, all of it is wiped and read back, and only then is it acknowledged.  What was revoked is
remembered, so that a request which was on its way meanwhile ends too; where more is revoked than is
remembered, older decisions count for nothing.

Refuses to know: queues, the model.  Source: SECURITY.md §2 (Authorization at read time, Purge proof).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Final

import msgspec

from executor.block_manager import BlockManager
from executor.caching import Trail
from executor.contract import (
    Cause,
    Gauges,
    ListKept,
    ModelCard,
    Purge,
    Purged,
    Quotas,
    Revoke,
    Revoked,
    Submit,
)
from executor.contract_cache import OWNERS_MAX, Caching
from executor.inventory import listed
from executor.outbox import Answer
from executor.prefix_cache import PrefixCache
from executor.scheduler.protocol import Chunk
from executor.sequence import Key, Sequence
from policies.scope.context import DIGEST_BYTES, Context

_REMEMBERED: Final = 65_536

Order = Revoke | Purge | ListKept | Quotas


def computes_with(card: ModelCard) -> Context | None:
    """What a model's keys and values depend on besides the tokens.  None: it does not say, and nothing of it
    is kept."""
    weights = bytes.fromhex(card.weights_digest)
    if len(weights) != DIGEST_BYTES:
        return None
    return Context(
        asked_digest=bytes(DIGEST_BYTES),  # each request has its own
        weights_digest=weights,
        adapter_digest=None,
        dtype=card.dtype,
        numerics=card.numerics,
        kernel_config=f"{card.device}; {card.device_name}; {card.kernels}",
        block_tokens=card.block_tokens,
    )


class Keeper:
    """Owned by the engine.  `computes`: what this engine computes with; None: nothing is kept.
    `is_zero`: `Runner.is_zero`."""

    def __init__(
        self,
        blocks: BlockManager,
        computes: Context | None,
        is_zero: Callable[[Seq[int]], bool],
    ) -> None:
        self._blocks = blocks
        self._computes = computes if blocks.pool else None
        self._is_zero = is_zero
        self.cache = PrefixCache(blocks)
        self._revoked: dict[bytes, int] = {}
        self._forgot = 0  # snapshots below this may have been revoked, and it is not known of what
        self._orders: list[tuple[int, Order]] = []
        self._registrations: list[Sequence] = []

    # Requests

    def begin(self, now_ns: int) -> None:
        self.cache.begin(now_ns)

    def refuses(self, job: Submit) -> bool:
        """Whether the policy that decided it is older than a revocation of what it names."""
        caching = job.caching
        if caching is None:
            return False
        return caching.snapshot < self._forgot or any(
            caching.snapshot < self._revoked.get(tag, 0) for tag in _tags(caching)
        )

    def file(self, seq: Sequence) -> None:
        caching = seq.job.caching
        if caching is not None and self._computes is not None:
            seq.trail = Trail(seq.job, caching, self.cache, self._blocks, self._context)
        if seq.job.warm:
            self._registrations.append(seq)

    def foreseen(self) -> Iterable[tuple[Key, Cause]]:
        """Of the warm submits filed since the last time, those that end with nothing computed: all of it is
        pinned already, or there is no room for it.  To be asked when all orders before them are obeyed."""
        new, self._registrations = self._registrations, []
        for seq in new:
            cause = Cause.QUOTA if seq.trail is None else seq.trail.foresee()
            if cause is not None:
                yield seq.key, cause

    def take(self, chunk: Chunk[Sequence]) -> None:
        """It is let in, and holds nothing yet: what was found becomes its own to read."""
        seq, size = chunk.seq, self._blocks.block_tokens
        if seq.follows(size):
            assert seq.leader is not None
            self._blocks.share(seq, seq.leader, chunk.taken)
            seq.attach(chunk.taken * size)
            if seq.trail is not None and seq.leader.trail is not None:
                seq.trail.follow(seq.leader.trail, seq)
        elif seq.trail is not None:
            seq.trail.take(seq, chunk.taken)
        else:
            assert not chunk.taken, "the plan saw something else"

    def computed(self, seq: Sequence) -> None:
        """A step computed more of it."""
        if seq.trail is not None and seq.computed > seq.pooled * self._blocks.block_tokens:
            seq.trail.keep(seq)

    def last_word(self, seq: Sequence, cause: Cause) -> Cause:
        """Of a warm submit that stops: whether what it brought was pinned."""
        if not seq.job.warm or cause is not Cause.STOP:
            return cause
        return cause if seq.trail is not None and seq.trail.pin(seq) else Cause.QUOTA

    def release(self, seq: Sequence, cause: Cause | None = None) -> None:
        """It lets go of its blocks, for good or (None) put out."""
        if seq.trail is not None:
            seq.trail.leave(seq, cause)
        self.cache.rest(self._blocks.release(seq))

    # Orders

    def order(self, owner: int, order: Order) -> None:
        self._orders.append((owner, order))

    def obey(
        self, living: Collection[Sequence], end: Callable[[Key], None]
    ) -> Iterable[tuple[int, Answer]]:
        """All that was ordered, and the answers."""
        orders, self._orders = self._orders, []
        for owner, order in orders:
            if isinstance(order, Quotas):
                self.cache.allot(order.quotas[:OWNERS_MAX])
                continue
            if isinstance(order, ListKept):
                yield owner, listed(order, self.cache)
                continue
            if isinstance(order, Revoke):
                tags = frozenset(order.tags)
                self._remember(tags, order.snapshot)
                gone = self.cache.revoke(tags)
                doomed = [seq.key for seq in living if _ends(seq, tags, order.snapshot)]
            else:
                gone = self.cache.purge(order.owner, frozenset(order.tags))
                doomed = []
                self._close(order, living)
            spared = isinstance(order, Purge) and order.spare
            read = {entry.block for entry in gone if self._blocks.is_held(entry.block)}
            if read and not spared:
                doomed += [
                    seq.key for seq in living if not read.isdisjoint((*seq.blocks, *seq.hidden))
                ]
            doomed = list(dict.fromkeys(doomed))
            for key in doomed:
                end(key)
            self._blocks.scrub()
            wiped = [entry.block for entry in gone if not (spared and entry.block in read)]
            zeroed = self._is_zero(wiped) if wiped else True
            answer = Revoked if isinstance(order, Revoke) else Purged
            yield (
                owner,
                answer(number=order.number, entries=len(gone), ended=len(doomed), zeroed=zeroed),
            )

    def _close(self, order: Purge, living: Iterable[Sequence]) -> None:
        """What waits has computed nothing yet."""
        for seq in living:
            if seq.trail and seq.blocks and seq.job.caching and order.covers(seq.job.caching):
                seq.trail.close()

    def _remember(self, tags: Iterable[bytes], snapshot: int) -> None:
        for tag in tags:
            before = self._revoked.pop(tag, 0)
            self._revoked[tag] = max(before, snapshot)
        while len(self._revoked) > _REMEMBERED:
            oldest = next(iter(self._revoked))
            self._forgot = max(self._forgot, self._revoked.pop(oldest))

    # What is seen

    def gauges(self, base: Gauges) -> Gauges:
        counts = self.cache.counts
        return msgspec.structs.replace(
            base,
            pool_blocks=self._blocks.pool,
            kept_blocks=self._blocks.kept,
            pinned_blocks=self.cache.pinned,
            cache_hits=counts.hits,
            cache_misses=counts.misses,
            cache_evictions=counts.evictions,
            cache_mismatches=counts.mismatches,
        )

    def check(self) -> None:
        self.cache.check()

    def _context(self, asked: bytes) -> bytes:
        assert self._computes is not None
        return replace(self._computes, asked_digest=asked).digest()


def _tags(caching: Caching) -> Iterable[bytes]:
    for scope in caching.scopes:
        yield scope.label
        yield from scope.covers


def _ends(seq: Sequence, tags: frozenset[bytes], snapshot: int) -> bool:
    caching = seq.job.caching
    return caching is not None and caching.ended_by(tags, snapshot)
