"""Who holds how much of the memory and of the rows, and how much each may hold.

Nobody is let in whom the growth of others would put out again: what counts is the most that all who run
will probably hold at once.  They end at different times, so that is less than the sum of what each
holds at its end (`peak`).  A tenant is over its share when
it would hold more than its weight's part of the memory or of the rows; with nothing in flight it never
is.  Who is over its share leaves `headroom` of both free for those who are not (SCHEDULER.md §2: this
does most of the work; reclaim does the rest).

Refuses to know: start times, what waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Generic

from executor.scheduler.lanes import Entry
from executor.scheduler.peak import Peak, Row
from executor.scheduler.protocol import Limits, W


class Residency(Generic[W]):
    """`headroom`: the part of memory and rows that is closed to those over their share."""

    __slots__ = (
        "_blocks",
        "_class_blocks",
        "_class_rows",
        "_peak",
        "_rows",
        "_running",
        "_sharers",
        "_unclaimed",
        "committed",
        "headroom",
        "limits",
    )

    def __init__(self, limits: Limits, headroom: float) -> None:
        self.limits = limits
        self.headroom = headroom
        self.committed = 0
        self._running: dict[int, Entry[W]] = {}
        self._peak: Peak | None = None  # of all that run, until they say more
        self._blocks: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._sharers = 0  # those who run and took what others held
        self._unclaimed = 0  # blocks that are held and that nobody is committed to
        self._class_blocks: Counter[str] = Counter()
        self._class_rows: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        return len(self._running)

    def begin(self, entry: Entry[W]) -> None:
        self._running[entry.ticket] = entry
        if self._peak is not None:
            self._peak.add(*self._row(entry))
        self._sharers += entry.shared_blocks > 0
        self._rows[entry.tenant.key] += 1
        self._class_rows[entry.band.terms.name] += 1
        self._commit(entry, self.blocks(entry))

    def grow(self) -> None:
        """Those who said more than was expected of them are committed to more."""
        self._peak = None
        running = self._running.values()
        for entry in [one for one in running if one.work.known >= one.expected_tokens]:
            self._commit(entry, self.blocks(entry))

    def reckon(self, free_blocks: int) -> None:
        """What went to the pool since is no longer held.  What is shared is counted for whom it was first
        held by; when that one has ended, the others hold it still."""
        self._unclaimed = 0
        for entry in self._running.values() if self.limits.prefixes else ():
            if entry.work.pooled > entry.shared_blocks:
                self._sharers += entry.shared_blocks == 0
                entry.shared_blocks = entry.work.pooled
                self._commit(entry, self.blocks(entry))
        if self._sharers:
            counted = sum(
                len(one.work.blocks) - one.shared_blocks for one in self._running.values()
            )
            self._unclaimed = max(0, self.limits.blocks_total - free_blocks - counted)

    def end(self, entry: Entry[W], *, put_out: bool) -> None:
        """It holds nothing any more.  `put_out`: by a plan, in which the others stay as they are."""
        del self._running[entry.ticket]
        if self._peak is not None and put_out:
            self._peak.remove(*self._row(entry))
        else:
            self._peak = None
        self._sharers -= entry.shared_blocks > 0
        self._less(self._rows, entry.tenant.key, 1)
        self._less(self._class_rows, entry.band.terms.name, 1)
        self._commit(entry, 0)

    def blocks(self, entry: Entry[W]) -> int:
        """Those it will probably need beside what others hold, one token more than it knows at least, the
        whole memory at most."""
        tokens = max(entry.expected_tokens, entry.work.known + 1)
        return min(self.limits.blocks(tokens), self.limits.blocks_total) - entry.shared_blocks

    def share(self, weight: float, active_weight: float) -> float:
        """The part of the machine that is due to a tenant of `weight` among those who are here; a row's at
        least, else everybody were over whose only request runs."""
        part = weight / max(weight, active_weight)
        return min(1.0, max(part, 1 / self.limits.seqs))

    def runs(self, tenant: str) -> int:
        """Rows that it has."""
        return self._rows[tenant]

    def is_within(self, entry: Entry[W], share: float) -> bool:
        """Whether this request alone is no more than its tenant's share of the memory."""
        return self.blocks(entry) <= share * self.limits.blocks_total

    def drains(self, entry: Entry[W]) -> bool:
        """Whether it would be let in if only the reserved classes' work was left."""
        reserved = [each.name for each in self.limits.workloads if each.reserved > 0]
        left = sum(self._class_blocks[name] for name in reserved)
        rows = sum(self._class_rows[name] for name in reserved)
        return left + self.blocks(entry) <= self.limits.blocks_total and rows < self.limits.seqs

    def is_over(self, tenant: str, share: float, blocks: int = 0, rows: int = 0) -> bool:
        """Whether it holds its whole share already, with so much more or less.  What a newcomer of it
        would need is not counted: rows and requests come in whole numbers, so shares are rounded up and
        start times decide among those who were; rounded down, the parts that are left belong to nobody."""
        held = self._rows[tenant] + rows
        return held > 0 and (
            self._blocks[tenant] + blocks >= share * self.limits.blocks_total
            or held >= share * self.limits.seqs
        )

    def is_large(self, entry: Entry[W], active_weight: float) -> bool:
        """Whether this request alone holds more than its tenant's share of the memory."""
        blocks = self.limits.blocks_total
        if entry.committed_blocks <= 1 / self.limits.seqs * blocks:
            return False  # no share is less
        return entry.committed_blocks > self.share(entry.tenant.weight, active_weight) * blocks

    def could_lose(self, running: Iterable[Entry[W]], active_weight: float) -> set[str]:
        """Tenants that are over their share, and not with one thing alone, unless that is large.  As
        `share` and `is_over` say, for all at once: a full house is asked in every step."""
        seqs, blocks = self.limits.seqs, self.limits.blocks_total
        least = 1 / seqs * blocks
        found: set[str] = set()
        for one in running:
            key, weight = one.tenant.key, one.tenant.weight
            rows, held = self._rows[key], self._blocks[key]
            if rows == 1 and held <= least:
                continue
            part = max(weight / active_weight if active_weight > weight else 1.0, 1 / seqs)
            large = held > part * blocks if rows == 1 else held >= part * blocks
            if large or (rows > 1 and rows >= part * seqs):
                found.add(key)
        return found

    def admits(self, entry: Entry[W], *, over: bool) -> bool:
        """Whether the rules let it in; `Draft.fits` says whether it can be."""
        blocks, rows = self.short(entry, over=over)
        return blocks <= 0 and rows <= 0

    def short(
        self, entry: Entry[W], *, over: bool, without: Collection[Entry[W]] = ()
    ) -> tuple[int, int]:
        """Blocks and rows that are missing for that, if some were gone: those kept for other classes are
        no room."""
        limits = self.limits
        free = 1.0 - (self.headroom if over else 0.0)
        blocks, rows = int(free * limits.blocks_total), int(free * limits.seqs)
        for terms in limits.workloads:
            if terms.reserved > 0 and terms.name != entry.band.terms.name:
                kept = int(terms.reserved * limits.blocks_total) - self._class_blocks[terms.name]
                blocks -= max(0, kept)
                kept = int(terms.reserved * limits.seqs) - self._class_rows[terms.name]
                rows -= max(0, kept)
        need = self._unclaimed + self.committed + self.blocks(entry)
        need -= sum(each.committed_blocks for each in without)
        if need > blocks:  # all their ends together: they will hardly come together
            peak = self._peak_without(without).tokens_with(*self._row(entry))
            need = self._unclaimed + limits.blocks(peak)
        return need - blocks, self.rows - len(without) + 1 - rows

    def peak(self) -> Peak:
        """What all that run will hold at most."""
        return self._peak_without(())

    def _peak_without(self, gone: Collection[Entry[W]]) -> Peak:
        if self._peak is None:
            size = self.limits.block_tokens
            rows = [  # as `_row` says
                (max(1, each.expected_tokens - known), known - each.shared_blocks * size)
                for each in self._running.values()
                for known in (each.work.known,)
            ]
            self._peak = Peak(rows, size // 2)
        return self._peak.without(map(self._row, gone)) if gone else self._peak

    def _commit(self, entry: Entry[W], blocks: int) -> None:
        more = blocks - entry.committed_blocks
        entry.committed_blocks = blocks
        self.committed += more
        self._less(self._blocks, entry.tenant.key, -more)
        self._less(self._class_blocks, entry.band.terms.name, -more)

    @staticmethod
    def _less(counter: Counter[str], key: str, count: int) -> None:
        counter[key] -= count
        if not counter[key]:
            del counter[key]

    def _row(self, entry: Entry[W]) -> Row:
        """Without what others hold."""
        known = entry.work.known
        own = known - entry.shared_blocks * self.limits.block_tokens
        return max(1, entry.expected_tokens - known), own
