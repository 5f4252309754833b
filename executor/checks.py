"""What must be true between two steps of an engine.  For tests: O(blocks + requests).

Refuses to know: how it came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from executor.block_manager import BlockManager
from executor.foyer import Foyer
from executor.positions import Positions
from executor.scheduler.protocol import Scheduler
from executor.sequence import Key, Sequence


def check(
    living: Mapping[Key, Sequence],
    outside: Iterable[Sequence],
    blocks: BlockManager,
    scheduler: Scheduler[Sequence],
    foyer: Foyer,
    positions: Positions,
) -> None:
    """The books of the blocks and of the queues agree.  `outside`: those who may not queue yet."""
    blocks.check(living.values())
    waiting = [*scheduler.waiting, *outside]
    here = [*scheduler.running, *waiting]
    assert sorted(seq.key for seq in here) == sorted(living)
    assert len(waiting) == scheduler.waiting_count + foyer.outside_count
    assert positions.count == scheduler.waiting_count
    assert foyer.count == sum(not seq.preemptions for seq in waiting)
    assert not any(seq.blocks for seq in scheduler.waiting)
