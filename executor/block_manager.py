"""Who holds which block of KV memory.  A block is free, held by one sequence or by several that read the
same prompt, or kept for later readers; when nobody holds or keeps it, it is wiped before it can be held again
(property P7 of the specification).

Of `total` blocks a `pool` is set aside for those kept: what is kept takes no room of what runs, whoever reads
it, and what runs takes none of the pool's.  So there are two accounts, and one way from one to the other:
`keep`, by which a block that is held becomes one of the pool.

Refuses to know: what a block holds, when anybody should get one, what is worth keeping.  The free list is a
stack, all work is O(blocks moved).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from itertools import chain

from executor.sequence import Sequence


class NotWiped(Exception):
    """What one request left behind cannot be wiped, so nobody else may be served here."""


class BlockManager:
    """`zero` is `Runner.zero_blocks`.  Released blocks wait for `scrub`, which wipes all of them
    in one call; `allocate` scrubs first where it must."""

    __slots__ = (
        "_dirty",
        "_free",
        "_holders",
        "_is_kept",
        "_used",
        "_zero",
        "block_tokens",
        "kept",
        "pool",
        "total",
    )

    def __init__(
        self, total: int, block_tokens: int, zero: Callable[[Seq[int]], None], pool: int = 0
    ) -> None:
        assert 0 <= pool < total
        assert block_tokens > 0
        self.total = total
        self.pool = pool
        self.block_tokens = block_tokens
        self._zero = zero
        self._free = list(range(total - 1, -1, -1))
        self._dirty: list[int] = []
        self._holders = [0] * total
        self._is_kept = bytearray(total)
        self._used = 0  # held, not kept
        self.kept = 0

    @property
    def room(self) -> int:
        """Blocks that what runs may hold."""
        return self.total - self.pool

    @property
    def free(self) -> int:
        """Of these, those that nobody holds."""
        return self.room - self._used

    @property
    def idle(self) -> int:
        """Of the whole memory."""
        return len(self._free) + len(self._dirty)

    @property
    def tokens(self) -> int:
        """What the memory can hold of one sequence."""
        return self.room * self.block_tokens

    def allocate(self, seq: Sequence, tokens: int) -> None:
        """Let `seq` hold room for `tokens` in all.  The plan has counted: running out is our bug."""
        missing = -(-tokens // self.block_tokens) - len(seq.blocks)
        if missing <= 0:
            return
        assert missing <= self.free, "the plan gave away more blocks than were free"
        if missing > len(self._free):
            self.scrub()
        self._used += missing
        for _ in range(missing):
            block = self._free.pop()
            assert self._holders[block] == 0
            self._holders[block] = 1
            seq.blocks.append(block)

    def share(self, seq: Sequence, holder: Sequence, count: int) -> None:
        """Let `seq`, which holds nothing, hold the first `count` blocks of `holder` too.  Nobody may
        write to them any more."""
        assert not seq.blocks
        assert not holder.hidden
        assert count <= len(holder.blocks)
        for block in holder.blocks[:count]:
            assert self._holders[block] > 0
            self._holders[block] += 1
            seq.blocks.append(block)
        seq.pooled = min(count, holder.pooled)

    # The pool

    def keep(self, block: int) -> None:
        """A block that is held goes to the pool; its holders read on."""
        assert self._holders[block] == 1
        assert not self._is_kept[block]
        assert self.kept < self.pool, "more is kept than was set aside"
        self._is_kept[block] = 1
        self._used -= 1
        self.kept += 1

    def take(self, seq: Sequence, blocks: Iterable[int], hidden: Iterable[int] = ()) -> None:
        """Let `seq`, which holds nothing, read kept blocks.  `hidden` come after the others and take no place
        yet: others are allocated there, as if nothing had been found (`appear`)."""
        assert not seq.blocks
        assert not seq.hidden
        seq.blocks.extend(blocks)
        seq.hidden.extend(hidden)
        seq.pooled = len(seq.blocks)
        for block in chain(seq.blocks, seq.hidden):
            assert self._is_kept[block], "it was not kept"
            self._holders[block] += 1

    def appear(self, seq: Sequence) -> None:
        """The first hidden block takes its place, as if it had been computed and kept just now."""
        self._exchange(seq, seq.hidden.pop(0))

    def adopt(self, seq: Sequence, block: int) -> None:
        """Read a kept block instead of the next one of its own, in which the same stands."""
        assert self._is_kept[block]
        self._holders[block] += 1
        self._exchange(seq, block)

    def _exchange(self, seq: Sequence, block: int) -> None:
        spare = seq.blocks[seq.pooled]
        assert self._holders[spare] == 1
        self._holders[spare] = 0
        self._used -= 1
        self._dirty.append(spare)
        seq.blocks[seq.pooled] = block
        seq.pooled += 1

    def is_shared(self, block: int) -> bool:
        """Whether several hold it: one that is not kept stays so, for each of them counts what it holds."""
        return self._holders[block] > 1

    def is_held(self, block: int) -> bool:
        return self._holders[block] > 0

    def forget(self, block: int) -> None:
        """A kept block that nobody reads is kept no more."""
        assert self._is_kept[block]
        assert self._holders[block] == 0
        self._is_kept[block] = 0
        self.kept -= 1
        self._dirty.append(block)

    # The end

    def release(self, seq: Sequence) -> list[int]:
        """Take back all that `seq` holds; nothing if it holds nothing.  Which kept blocks nobody reads any
        more, the last of the prompt first."""
        resting: list[int] = []
        for block in chain(seq.blocks, seq.hidden):
            assert self._holders[block] > 0
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if self._is_kept[block]:
                    resting.append(block)
                else:
                    self._used -= 1
                    self._dirty.append(block)
        seq.blocks.clear()
        seq.hidden.clear()
        seq.pooled = 0
        resting.reverse()
        return resting

    def scrub(self) -> None:
        """Wipe what was released.  NotWiped: the device failed, and the blocks stay out of use."""
        if self._dirty:
            try:
                self._zero(self._dirty)
            except Exception as caught:  # noqa: BLE001 — whatever a device raises
                raise NotWiped(f"freed KV memory was not wiped: {type(caught).__name__}") from None
            self._free.extend(reversed(self._dirty))
            self._dirty.clear()

    def check(self, holders: Iterable[Sequence]) -> None:
        """Conservation: free + held + kept, each counted once, = total, and every holder is known.  O(total)."""
        held = Counter(block for seq in holders for block in chain(seq.blocks, seq.hidden))
        kept = {block for block in range(self.total) if self._is_kept[block]}
        seen = [*self._free, *self._dirty, *(held.keys() | kept)]
        assert sorted(seen) == list(range(self.total)), "a block is lost, or free and in use"
        assert all(self._holders[block] == held[block] for block in seen), "a holder is unknown"
        assert self._used == len(held.keys() - kept) <= self.room
        assert self.kept == len(kept) <= self.pool
