"""HFQ-K: fair queueing in measured device time, with headroom and rationed reclaim, so that who holds
the machine is fair and not only who comes next.

One step: decodes, always; then what is left of the step's time goes to prompts, those begun and those
waiting, by class and then by the least start time of tenant and user.  Classes: reserved work first
while it is within its part; then a class that is owed its floor; then the weighted, all tenants by one
order, whatever class they are in; then backfill.  A head that is under its share and finds no room
stops those who are over theirs, and may put one of their requests out.

Refuses to know: blocks by id, tokens' values, clocks.  Source: SCHEDULER.md §2; README.md, decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from heapq import heappop
from typing import Final, Generic

from executor.contract import Workload
from executor.cost import Rates
from executor.scheduler.accounts import Accounts, prompt_ns, terms_of
from executor.scheduler.admission import Admission, Held
from executor.scheduler.batching import Gate
from executor.scheduler.filling import Filling, Fit
from executor.scheduler.lanes import Band, Entry, Order, Place, Rank, Works, order_of, rank_of
from executor.scheduler.locality import Window
from executor.scheduler.prediction import Outputs
from executor.scheduler.promises import Refusal
from executor.scheduler.protocol import Charge, Limits, Moment, Plan, Turn, W
from executor.scheduler.reclaim import Allowance, able, for_growth, lost_ns, who_makes_room
from executor.scheduler.residency import Residency
from executor.scheduler.step import Draft

_RESERVED_WINDOW_NS: Final = 2e9
_FLOOR_WINDOW_NS: Final = 60e9


@dataclass(frozen=True, slots=True)
class Tuning:
    """`headroom`: of memory and rows, closed to those over their share.  `recompute`: the part of the time
    that may be computed twice.  `ahead_ms`: of device time that the others would need to make up what a
    tenant had before them; from there on it is over its share, whatever it holds.  `locality_ms`: the same
    for whom the start of a prompt is kept; so much earlier it may come in (`locality`).  0: no window."""

    headroom: float = 0.15
    recompute: float = 0.05
    ahead_ms: float = 20_000.0
    locality_ms: float = 3_000.0


class Fair(Generic[W]):
    """Hierarchical over class, tenant and user.  O(log tenants) a pick."""

    def __init__(self, limits: Limits, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._limits = limits
        self._gate = Gate(limits.batching)
        self._accounts: Accounts[W] = Accounts(self._tuning.ahead_ms * 1e6)
        self._outputs = Outputs()
        self._residency: Residency[W] = Residency(limits, self._tuning.headroom)
        self._allowance = Allowance(self._tuning.recompute)
        self._bands: dict[str, Band[W]] = {}
        self._waiting: dict[int, Entry[W]] = {}
        self._running: dict[int, Entry[W]] = {}
        self._admission = Admission(limits, self._tuning.headroom, self._mean)
        self._step_ns = 0  # measured since the last plan
        self._contended = False  # somebody but backfill waited in the last plan

    @property
    def running(self) -> Seq[W]:
        return [entry.work for entry in self._running.values()]

    @property
    def waiting(self) -> Collection[W]:
        return Works(self._waiting)

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def add(self, seq: W, now_ns: int) -> None:
        self._admission.crowd.sees(self._held(seq).weight, now_ns)
        self._queue(self._accounts.open(seq, self._band(seq.workload)))

    def refuses(self, seq: W, moment: Moment) -> Refusal | None:
        return self._admission.refuses(seq, self._held(seq), moment)

    def returns(self, seq: W, now_ns: int) -> Turn | None:
        return self._admission.returns(seq, now_ns)

    def turns_away(self, seq: W, retry_ms: int, now_ns: int) -> int:
        came_in = seq.ticket in self._waiting
        return self._admission.turns_away(seq, retry_ms, now_ns, came_in=came_in)

    def remove(self, seq: W, now_ns: int) -> None:
        entry = self._waiting.pop(seq.ticket, None)
        if entry is not None:
            self._accounts.go(entry)
        else:
            entry = self._running.pop(seq.ticket)
            self._end(entry, put_out=False)
            self._outputs.saw(seq.tenant, seq.user, seq.generated)
        self._admission.foresight.ends(entry, now_ns)
        self._accounts.close(entry, self._bands.values())

    def charge(self, bill: Iterable[Charge[W]]) -> None:
        running, measured, contended = self._running, self._accounts.measured, self._contended
        step_ns = self._step_ns
        for seq, device_ns, again_ns in bill:
            entry = running[seq.ticket]
            measured(entry, device_ns)
            band = entry.band
            if contended or not band.terms.floor:
                band.credit_ns -= device_ns
            step_ns += device_ns + again_ns
        self._step_ns = step_ns

    def renew(self, limits: Limits) -> None:
        """Other terms for the classes from now on, also for what is here."""
        self._limits = self._residency.limits = self._admission.limits = limits
        for name, band in self._bands.items():
            terms = terms_of(limits.workloads, name)
            if (rank_of(terms) is Rank.BACKFILL) == (band.rank is Rank.BACKFILL):
                band.renew(terms)
                continue
            new = self._bands[name] = _new(terms)
            moved = [each for each in self._waiting.values() if each.band is band]
            for entry in moved:
                self._accounts.move(entry, new, waits=True)
            for entry in self._running.values():
                if entry.band is band:
                    self._accounts.move(entry, new, waits=False)
            for tenant in {entry.tenant.key for entry in moved}:
                if not self._residency.runs(tenant):
                    new.rest(tenant)

    def plan(self, moment: Moment) -> Plan[W]:
        running = self.running
        self._admission.foresight.hears(running, moment.now_ns)
        self._residency.grow()
        self._residency.reckon(moment.free_blocks)
        self._earn()
        self._contended = self._accounts.contended
        draft = Draft(running, self.waiting, moment, self._limits, self._gate)
        draft.grow(self._for_growth)
        put_out = [self._put_out(seq, moment.rates) for seq in draft.preempted]
        filling = Filling(draft, moment, self._victims)
        if self._limits.prefixes and self._tuning.locality_ms:
            filling.window = Window(
                self._tuning.locality_ms * 1e6,
                self._accounts,
                place=self._place,
                turns=filling.turns,
                found=lambda entry: draft.found(entry.work).blocks,
                fits=lambda entry: self._fit(entry, filling) is Fit.YES,
            )
        self._fill(filling)
        for band, flow in filling.aside:
            band.put_back(flow, rests=not self._residency.runs(flow.key))
        for entry in (*put_out, *filling.put_out):
            self._queue(entry)
        return draft.plan()

    def _queue(self, entry: Entry[W]) -> None:
        self._waiting[entry.ticket] = entry
        self._accounts.wait(entry)
        if not self._residency.runs(entry.tenant.key):
            entry.band.rest(entry.tenant.key)
        self._admission.waits(entry)

    def _for_growth(self, alive: Seq[W]) -> W:
        entries = [self._running[seq.ticket] for seq in alive]
        over = {one.tenant.key for one in entries if self._is_over(one)}
        return for_growth(entries, over).work

    # Who is next

    def _fill(self, filling: Filling[W]) -> None:
        """Give the rest of the step to prompts, in order of their class and of what their tenants had."""
        draft = filling.draft
        begun = filling.begun(self._running, self._bands.values())
        while (begun or filling.admits) and not draft.spent:
            head = self._head(filling) if filling.admits else None
            if begun and (head is None or self._goes_on(begun[0][-1]) <= self._place(head)):
                entry = heappop(begun)[-1]
                if entry.ticket in self._running and not draft.go_on(entry.work):
                    return
            elif head is None:
                return
            elif self._has_room(head := filling.nearest(head, self._bands.values()), filling):
                if not draft.admit(head.work):
                    return
                self._let_in(head, filling)
            else:
                filling.set_aside(head)

    def _place(self, entry: Entry[W]) -> Place:
        return order_of(entry.band), entry.tenant.start, entry.user.start, entry.place

    def _goes_on(self, entry: Entry[W]) -> Place:
        return order_of(entry.band), entry.reached, entry.user.start, entry.place

    def _head(self, filling: Filling[W]) -> Entry[W] | None:
        """The next of all that wait and were not set aside."""
        heads = [
            band.head(flow.key)
            for band in self._bands.values()
            if (flow := filling.turns(band).first()) is not None
        ]
        return min(heads, key=self._place, default=None)

    def _has_room(self, entry: Entry[W], filling: Filling[W]) -> bool:
        """Whether there is room for it within the rules, or can be made."""
        fit = self._fit(entry, filling)
        if fit is not Fit.MAKE:
            return fit is Fit.YES
        if self._reclaim(entry, filling):
            return True
        filling.block(entry, drains=self._residency.drains(entry))
        return False

    def _fit(self, entry: Entry[W], filling: Filling[W]) -> Fit:
        """Whether it can come in as things are."""
        work, residency, draft = entry.work, self._residency, filling.draft
        found = draft.found(work)
        entry.shared_blocks = found.held
        entry.expected_tokens = max(work.known + 1, work.prompt_tokens + self._answer(work))
        if not draft.invites(work):
            return Fit.NO
        if not draft.alive:
            return Fit.YES if draft.fits(work) else Fit.NO
        if found.blocks and any(one.tenant.key == entry.tenant.key for one in filling.put_out):
            return Fit.NO  # what it would take may be among what they lost
        over = order_of(entry.band) > Order.OWED and (
            self._accounts.is_ahead(entry) or self._is_over(entry)
        )
        if over and filling.blocked:
            return Fit.NO
        if residency.runs(entry.tenant.key) and not self._keeps_pace(entry, draft):
            return Fit.NO
        if draft.fits(work) and residency.admits(entry, over=over):
            return Fit.YES
        return Fit.NO if over else Fit.MAKE

    def _keeps_pace(self, entry: Entry[W], draft: Draft[W]) -> bool:
        """What is promised between tokens bounds how many speak at once, but neither reserved work nor
        who has nothing in flight is kept out for it."""
        return order_of(entry.band) is Order.RESERVED or draft.keeps_pace(entry.work)

    def _let_in(self, entry: Entry[W], filling: Filling[W]) -> None:
        work = entry.work
        self._accounts.go(entry)
        del self._waiting[entry.ticket]
        known_ns = prompt_ns(
            *filling.draft.uncached(work), len(self._running), filling.moment.rates
        )
        known_ns = entry.charged_ns if work.preemptions else known_ns
        self._accounts.serve(entry, known_ns, self._bands.values(), filling.aside)
        self._admission.foresight.starts(entry)
        self._residency.begin(entry)
        for band in self._bands.values():
            band.resting.drop(entry.tenant.key)
        self._running[entry.ticket] = entry
        entry.passed = entry.outrun = 0
        filling.passed(entry)

    # Room

    def _answer(self, work: W) -> int:
        return self._outputs.expect(work.tenant, work.user, work.max_new_tokens)

    def _mean(self, work: W) -> int:
        return self._outputs.mean(work.tenant, work.user, work.max_new_tokens)

    def _held(self, work: W) -> Held:
        tenants, known = self._accounts.tenants, self._accounts.tenants.get(work.tenant)
        others = tenants.weight - (known.weight if known is not None and known.holds else 0.0)
        residency = self._residency
        return Held(residency.rows, residency.peak, others + work.tenant_weight)

    def _share(self, entry: Entry[W]) -> float:
        return self._residency.share(entry.tenant.weight, self._accounts.tenants.weight)

    def _victims(self) -> list[Entry[W]]:
        ranks = [band.rank for band in self._bands.values() if band.count]
        over = partial(self._residency.could_lose, active_weight=self._accounts.tenants.weight)
        return able(self._running.values(), min(ranks, default=Rank.BACKFILL), over)

    def _is_over(self, entry: Entry[W]) -> bool:
        return self._residency.is_over(entry.tenant.key, self._share(entry))

    def _reclaim(self, head: Entry[W], filling: Filling[W]) -> bool:
        """Put out what stands in the way of `head`, all that is needed or nothing."""
        whole, left_ns = self._accounts.tenants.weight, self._allowance.left_ns
        chosen = who_makes_room(head, filling, self._residency, whole, left_ns)
        for entry in chosen or ():
            filling.draft.preempt(entry.work)
            filling.put_out.append(self._put_out(entry.work, filling.moment.rates))
        return chosen is not None

    def _put_out(self, seq: W, rates: Rates) -> Entry[W]:
        entry = self._running.pop(seq.ticket)
        self._end(entry, put_out=True)
        self._allowance.spend(lost_ns(entry, rates))
        return entry

    def _end(self, entry: Entry[W], *, put_out: bool) -> None:
        """It holds nothing any more."""
        self._residency.end(entry, put_out=put_out)
        if not self._residency.runs(entry.tenant.key):
            for band in self._bands.values():
                band.rest(entry.tenant.key)

    # Classes

    def _band(self, name: str) -> Band[W]:
        band = self._bands.get(name)
        if band is None:
            band = self._bands[name] = _new(terms_of(self._limits.workloads, name))
        return band

    def _earn(self) -> None:
        """What was measured since the last plan: a part of it is for the reserved, a part for the floors
        of those who wait, a part may be computed twice."""
        for band in self._bands.values():
            reserved, floor = band.terms.reserved, band.terms.floor
            if reserved or (floor and band.count and self._contended):
                part, window_ns = (
                    (reserved, _RESERVED_WINDOW_NS) if reserved else (floor, _FLOOR_WINDOW_NS)
                )
                most = part * window_ns
                band.credit_ns = max(-most, min(most, band.credit_ns + part * self._step_ns))
        self._allowance.earn(self._step_ns)
        self._step_ns = 0


def _new(terms: Workload) -> Band[W]:
    band: Band[W] = Band(terms)
    band.credit_ns = terms.reserved * _RESERVED_WINDOW_NS  # nothing of it was used
    return band
