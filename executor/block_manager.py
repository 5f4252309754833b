"""Who owns which block of KV memory.  Each block has one owner or none; a freed block is wiped
before it can be owned again (property P7 of the specification).

Refuses to know: what a block holds, when anybody should get one.  The free list is a stack, all
work is O(blocks moved).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from executor.sequence import Sequence


class BlockManager:
    """`zero` is `Runner.zero_blocks`.  Released blocks wait for `scrub`, which wipes all of them
    in one call; `allocate` scrubs first where it must."""

    __slots__ = ("_dirty", "_free", "_owners", "_zero", "block_tokens", "total")

    def __init__(self, total: int, block_tokens: int, zero: Callable[[Seq[int]], None]) -> None:
        assert total > 0
        assert block_tokens > 0
        self.total = total
        self.block_tokens = block_tokens
        self._zero = zero
        self._free = list(range(total - 1, -1, -1))
        self._dirty: list[int] = []
        self._owners: list[Sequence | None] = [None] * total

    @property
    def free(self) -> int:
        return len(self._free) + len(self._dirty)

    @property
    def tokens(self) -> int:
        """What the whole memory can hold of one sequence."""
        return self.total * self.block_tokens

    def allocate(self, seq: Sequence, tokens: int) -> None:
        """Let `seq` own room for `tokens` in all.  The plan has counted: running out is our bug."""
        missing = -(-tokens // self.block_tokens) - len(seq.blocks)
        if missing <= 0:
            return
        if missing > len(self._free):
            self.scrub()
        assert missing <= len(self._free), "the plan gave away more blocks than were free"
        for _ in range(missing):
            block = self._free.pop()
            assert self._owners[block] is None
            self._owners[block] = seq
            seq.blocks.append(block)

    def release(self, seq: Sequence) -> None:
        """Take back all that `seq` owns; nothing if it owns nothing."""
        for block in seq.blocks:
            assert self._owners[block] is seq
            self._owners[block] = None
        self._dirty.extend(seq.blocks)
        seq.blocks.clear()

    def scrub(self) -> None:
        """Wipe what was released.  If wiping fails the blocks stay out of use."""
        if self._dirty:
            self._zero(self._dirty)
            self._free.extend(reversed(self._dirty))
            self._dirty.clear()

    def check(self, holders: Iterable[Sequence]) -> None:
        """Conservation: free + held = total, no block twice, each owner is the holder.  O(total)."""
        seen = self._free + self._dirty
        assert all(self._owners[block] is None for block in seen)
        for seq in holders:
            assert all(self._owners[block] is seq for block in seq.blocks)
            seen += seq.blocks
        assert sorted(seen) == list(range(self.total)), "a block is lost or has two owners"
