"""Who holds which block of KV memory.  A block is free, or held by one sequence or by several that
read the same prompt; when the last lets go it is wiped before it can be held again (property P7 of
the specification).

Refuses to know: what a block holds, when anybody should get one.  The free list is a stack, all
work is O(blocks moved).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from executor.sequence import Sequence


class NotWiped(Exception):
    """What one request left behind cannot be wiped, so nobody else may be served here."""


class BlockManager:
    """`zero` is `Runner.zero_blocks`.  Released blocks wait for `scrub`, which wipes all of them
    in one call; `allocate` scrubs first where it must."""

    __slots__ = ("_dirty", "_free", "_holders", "_zero", "block_tokens", "total")

    def __init__(self, total: int, block_tokens: int, zero: Callable[[Seq[int]], None]) -> None:
        assert total > 0
        assert block_tokens > 0
        self.total = total
        self.block_tokens = block_tokens
        self._zero = zero
        self._free = list(range(total - 1, -1, -1))
        self._dirty: list[int] = []
        self._holders = [0] * total

    @property
    def free(self) -> int:
        return len(self._free) + len(self._dirty)

    @property
    def tokens(self) -> int:
        """What the whole memory can hold of one sequence."""
        return self.total * self.block_tokens

    def allocate(self, seq: Sequence, tokens: int) -> None:
        """Let `seq` hold room for `tokens` in all.  The plan has counted: running out is our bug."""
        missing = -(-tokens // self.block_tokens) - len(seq.blocks)
        if missing <= 0:
            return
        if missing > len(self._free):
            self.scrub()
        assert missing <= len(self._free), "the plan gave away more blocks than were free"
        for _ in range(missing):
            block = self._free.pop()
            assert self._holders[block] == 0
            self._holders[block] = 1
            seq.blocks.append(block)

    def share(self, seq: Sequence, holder: Sequence, count: int) -> None:
        """Let `seq`, which holds nothing, hold the first `count` blocks of `holder` too.  Nobody may
        write to them any more."""
        assert not seq.blocks
        assert count <= len(holder.blocks)
        for block in holder.blocks[:count]:
            assert self._holders[block] > 0
            self._holders[block] += 1
            seq.blocks.append(block)

    def release(self, seq: Sequence) -> None:
        """Take back all that `seq` holds; nothing if it holds nothing."""
        for block in seq.blocks:
            assert self._holders[block] > 0
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._dirty.append(block)
        seq.blocks.clear()

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
        """Conservation: free + held, each counted once, = total, and every holder is known.  O(total)."""
        held = Counter(block for seq in holders for block in seq.blocks)
        seen = [*self._free, *self._dirty, *held]
        assert sorted(seen) == list(range(self.total)), "a block is lost, or free and held"
        assert all(self._holders[block] == held[block] for block in seen), "a holder is unknown"
