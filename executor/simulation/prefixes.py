"""What is kept of prompts in a simulated memory: blocks by all the text that leads to them, and whose.

A block is held by those who run and read it, or rests: then it counts as free, and is overwritten when
memory is needed, the one that was left longest ago first.  Whoever leaves lets go of the end of its prompt
first, so a block never outlives the one before it.  Nothing is ever found across tenants.

Refuses to know: schedulers, time, tokens' values.  Source: vLLM's and SGLang's prefix caches; the ids are
those of Mooncake's traces (`traces_rows`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from executor.scheduler.protocol import Found

Chain = Sequence[int]
"""Blocks from the first on, each a number that stands for its text and all before it."""


class Prefixes:
    """Owned by an engine, which counts what is free.  Numbers are never forgotten, so their count is
    bounded by the trace."""

    __slots__ = ("_block_tokens", "_holders", "_numbers", "_resting")

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._numbers: dict[tuple[str | int, int], int] = {}
        self._holders: dict[int, int] = {}  # of each block that is kept
        self._resting: OrderedDict[int, None] = OrderedDict()

    @property
    def resting(self) -> int:
        return len(self._resting)

    def chain(self, tenant: str, prefix: Sequence[int], id_tokens: int, tokens: int) -> Chain:
        """Full blocks of the first `tokens` that `prefix` names; each id stands for `id_tokens`."""
        assert id_tokens % self._block_tokens == 0
        blocks = min(len(prefix) * id_tokens, tokens) // self._block_tokens
        found: list[int] = []
        before: str | int = tenant
        for at in range(blocks):
            key = before, prefix[at * self._block_tokens // id_tokens]
            before = self._numbers.setdefault(key, len(self._numbers))
            found.append(before)
        return found

    def found(self, chain: Chain) -> Found:
        blocks = resting = 0
        for block in chain:
            holders = self._holders.get(block)
            if holders is None:
                break
            blocks += 1
            resting += not holders
        return Found(blocks, resting)

    def take(self, chain: Chain) -> int:
        """One more holds all of it; how many of the blocks rested."""
        rested = 0
        for block in chain:
            if not self._holders[block]:
                rested += 1
                del self._resting[block]
            self._holders[block] += 1
        return rested

    def keep(self, block: int) -> bool:
        """It was computed by one who holds it.  False: another did so before, whose is kept."""
        if block in self._holders:
            return False
        self._holders[block] = 1
        return True

    def release(self, blocks: Sequence[int]) -> int:
        """One who held them, in order, does no longer; how many rest now."""
        rest = 0
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                rest += 1
                self._resting[block] = None
        return rest

    def shrink(self, free: int) -> None:
        """No more than are `free` rest."""
        while len(self._resting) > free:
            block, _ = self._resting.popitem(last=False)
            del self._holders[block]
