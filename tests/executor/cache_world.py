"""A small world of tenants, people and documents around an engine, and a witness that knows from the requests
alone what each kept block is: it trusts no chain value, no label index and no account.

Texts are few, so that equal words meet under labels that are not equal all the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from executor.batch import Batch
from executor.contract import (
    Cause,
    Ended,
    Purge,
    Quota,
    Quotas,
    Revoke,
    Scope,
    Submit,
)
from executor.cost import PESSIMIST, StepTimes
from executor.prefix_cache import Entry, Place
from executor.sequence import Sequence as Seq
from executor.settings import Policy, Settings
from policies.scope.residency import Ttl
from tests.executor.fakes import FREE, Clock, FakeRunner, Harness, job
from tests.executor.labelled import labelled, scope, tag
from tests.executor.test_engine import greedy

SIZE = 4
VOCAB = 12
TEXTS = [tuple((7 * n + at * at) % VOCAB for at in range(9)) for n in range(3)]
DOCUMENT = tuple(range(1, 11))
TENANTS = ("a", "b")
MS = 1_000_000


@dataclass(eq=False)
class Known:
    """What a kept block is, by the request that brought it."""

    tokens: tuple[int, ...]
    scopes: tuple[Scope, ...]
    context: bytes
    owner: str
    pinned: bool
    created_ns: int
    used_ns: int
    absolute_ns: int | None
    idle_ns: int | None
    revoked: bool = False

    def alive(self, now_ns: int) -> bool:
        idle = self.idle_ns is None or now_ns < self.used_ns + self.idle_ns
        ends = self.absolute_ns is not None and now_ns >= self.created_ns + self.absolute_ns
        return idle and not ends

    def rests_on(self, tags: Collection[bytes]) -> bool:
        return any(s.label in tags or set(tags) & set(s.covers) for s in self.scopes)


def scopes_of(asked: Submit, block: int) -> tuple[Scope, ...]:
    """Of each block up to this one: that of its last token."""
    assert asked.caching is not None
    named = asked.caching.scopes
    ends = [(at + 1) * SIZE for at in range(block + 1)]
    return tuple(next((s for s in named if end <= s.until), named[-1]) for end in ends)


def same(one: Iterable[Scope], other: Iterable[Scope]) -> bool:
    def plain(each: Scope) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        return each.label, each.key, each.covers

    return list(map(plain, one)) == list(map(plain, other))


@dataclass
class Witness:
    """Watches every block that is kept, taken or let go."""

    house: Harness
    known: dict[Entry, Known] = field(default_factory=dict)
    ordered: bool = False  # in this step
    taken: int = 0
    hidden: int = 0

    def __post_init__(self) -> None:
        keeper = self.house.engine.keeper
        cache = keeper.cache
        take, insert, rest, renew, file = (
            keeper.take,
            cache._insert,
            cache.rest,
            cache.renew,
            keeper.file,
        )
        asking: list[Seq] = []

        def filed(seq: Seq) -> None:
            file(seq)
            if seq.trail is not None:
                seq.trail = Telling(seq.trail, seq, asking)  # type: ignore[assignment]

        def inserted(
            owner: object, place: Place, parent: Entry | None, ttl: object, block: int, **how: bool
        ) -> Entry:
            entry = insert(owner, place, parent, ttl, block, **how)  # type: ignore[arg-type]
            self.note(entry, asking[-1], block, how["pinned"])
            return entry

        def taking(chunk: object) -> None:
            seq: Seq = chunk.seq  # type: ignore[attr-defined]
            take(chunk)  # type: ignore[arg-type]
            self.judge(seq)

        def resting(blocks: Iterable[int]) -> None:
            listed = list(blocks)
            for block in listed:
                known = self.known[cache._by_block[block]]
                if not known.pinned:
                    known.used_ns = cache.now_ns
            rest(listed)

        def renewing(owner: str, entry: Entry, ttl: Ttl) -> None:
            renew(owner, entry, ttl)
            if self.known[entry].owner == owner:
                self.known[entry].created_ns = cache.now_ns
                self.known[entry].absolute_ns = ttl.absolute_ns

        order = keeper.order

        def ordering(owner: int, command: Revoke | Purge | Quotas) -> None:
            self.ordered = True
            order(owner, command)

        keeper.order = ordering  # type: ignore[method-assign,assignment]
        keeper.file = filed  # type: ignore[method-assign]
        keeper.take = taking  # type: ignore[method-assign]
        cache._insert = inserted  # type: ignore[method-assign]
        cache.rest = resting  # type: ignore[method-assign]
        cache.renew = renewing  # type: ignore[method-assign]

    def note(self, entry: Entry, seq: Seq, block: int, pinned: bool) -> None:
        at = seq.blocks.index(block)
        end = (at + 1) * SIZE
        assert end <= seq.computed, "kept before it was computed"
        tokens = tuple(seq.tokens[:end])
        asked = seq.job
        assert asked.caching is not None
        assert self.house.runner._memory[block] == list(tokens[-SIZE:]), "it holds something else"
        named = scopes_of(asked, at)
        assert pinned == named[-1].pinned == asked.warm, (
            "a request made a pinned one, or the reverse"
        )
        now_ns = self.house.engine.keeper.cache.now_ns
        idle_ns = None if pinned else asked.caching.idle_ms * MS
        self.known[entry] = Known(
            tokens,
            named,
            asked.caching.context,
            asked.caching.owner,
            pinned,
            now_ns,
            now_ns,
            None if asked.caching.absolute_ms is None else asked.caching.absolute_ms * MS,
            idle_ns,
        )

    def judge(self, seq: Seq) -> None:
        """P1, P2, P6, and time: whatever it reads that another computed."""
        cache = self.house.engine.keeper.cache
        blocks = [*seq.blocks[: seq.pooled], *seq.hidden]
        self.taken += len(blocks)
        self.hidden += len(seq.hidden)
        if not blocks:
            return
        asked = seq.job
        assert asked.caching is not None
        assert len(blocks) * SIZE < seq.prompt_tokens, "its last token is not computed"
        for at, block in enumerate(blocks):
            known = self.known[cache._by_block[block]]
            assert known.tokens == asked.prompt[: (at + 1) * SIZE]
            assert same(known.scopes, scopes_of(asked, at))
            assert known.context == asked.caching.context
            assert known.pinned or known.owner == asked.caching.owner
            follows = seq.leader is not None and block in seq.leader.blocks
            assert follows or not known.revoked
            assert follows or known.alive(cache.now_ns)
            assert at >= seq.pooled or scopes_of(asked, at)[-1].disclosed or follows
            if not known.pinned:
                known.used_ns = cache.now_ns

    def step(self) -> None:
        """P4, P5: what went and what came in one step, and whose doing that was."""
        engine, cache = self.house.engine, self.house.engine.keeper.cache
        before = dict.fromkeys(cache._entries.values())
        ends_ns = {each: (each.created_ns, each.used_ns) for each in before if each.pinned}
        self.ordered = False
        owners_before = {seq.tenant for seq in engine._seqs.values()} | {
            c.share[0][0] for _, c in self.house.inbox if isinstance(c, Submit) and c.share
        }
        self.house.step()
        after = dict.fromkeys(cache._entries.values())
        warmed = self._warmed()
        for gone in before.keys() - after.keys():
            known = self.known[gone]
            if self.ordered or not known.alive(cache.now_ns) or self._hung_on_dead(gone):
                continue
            assert not known.pinned, "a request ended what is registered"
            if (
                warmed
            ):  # a registration takes the place of what was left there, and of what hangs on it
                continue
            assert known.owner in owners_before, "another's traffic ended it"
        for came in after.keys() - before.keys():
            assert not self.known[came].pinned or self.known[came].owner in warmed
        for each, was in ends_ns.items():
            if each in after and self.known[each].owner not in warmed:
                assert (each.created_ns, each.used_ns) == was, "a request moved a pinned end"

    def _warmed(self) -> set[str]:
        """Owners whose warm submits ended in the last reports."""
        warm = self.house.warm_owners  # type: ignore[attr-defined]
        return {
            warm[update.request]
            for report in self.house.reports[-1:]
            for update in report.updates
            if isinstance(update, Ended) and update.request in warm
        }

    def _hung_on_dead(self, entry: Entry) -> bool:
        up = entry.parent
        while up is not None:
            if not self.known[up].alive(self.house.engine.keeper.cache.now_ns):
                return True
            up = up.parent
        return False

    def hears(self, orders: Sequence[Revoke], acknowledged: Collection[int]) -> None:
        """P6: from its acknowledgement on."""
        for order in orders:
            if order.number in acknowledged:
                living = self.house.engine._seqs.values()
                for seq in living:
                    caching = seq.job.caching
                    assert caching is None or not caching.ended_by(
                        frozenset(order.tags), order.snapshot
                    ), "a reader outlived the acknowledgement"
                found = self.house.engine.keeper.cache._entries.values()
                for entry, known in self.known.items():
                    if known.rests_on(order.tags) and entry not in found:
                        known.revoked = True
                assert not any(
                    self.known[e].rests_on(order.tags) and self.known[e].revoked for e in found
                )


class Telling:
    """A trail that says whose it is while it keeps something."""

    def __init__(self, trail: object, seq: Seq, asking: list[Seq]) -> None:
        self.__dict__.update(trail=trail, seq=seq, asking=asking)

    def __getattr__(self, name: str) -> object:
        found = getattr(self.__dict__["trail"], name)
        if name not in {"keep", "pin", "leave"}:
            return found

        def told(*args: object) -> object:
            self.__dict__["asking"].append(self.__dict__["seq"])
            try:
                return found(*args)
            finally:
                self.__dict__["asking"].pop()

        return told


def house_of(rng: Random) -> Harness:
    kv_blocks = rng.choice([20, 28, 40, 64])
    runner = FakeRunner(
        block_tokens=SIZE,
        kv_blocks=kv_blocks,
        vocab_size=VOCAB,
        context_tokens=48,
        habits=rng.choice([0.0, 0.0, 6.0]),
    )
    settings = Settings(
        seqs_max=rng.choice([1, 2, 4, 8]),
        step_tokens_max=rng.choice([3, 8, 64]),
        chunk_tokens_min=rng.choice([1, 4]),
        policy=rng.choice([Policy.FAIR, Policy.FAIR, Policy.FCFS, Policy.VTC]),
        pool_part=rng.choice([0.2, 0.4, 0.5]),
        check_invariants=True,
    )
    clock = Clock(tick_ns=rng.choice([1, 1_000_003]))
    times = StepTimes(rng.choice([PESSIMIST, FREE]))
    house = Harness(runner, settings=settings, clock=clock, times=times)
    house.warm_owners = {}  # type: ignore[attr-defined]
    return house


def quotas_of(rng: Random) -> Quotas:
    parts = [0.1, 0.3, 0.5, 0.5, 1.0]
    return Quotas(
        quotas=tuple(
            Quota(owner=each, part=rng.choice(parts), pinned=rng.choice([0.0, 0.5, 0.5, 1.0]))
            for each in ("op", *TENANTS)
            if rng.random() < 0.9
        )
    )


def asked(rng: Random, request: int, snapshot: int, versions: dict[str, int]) -> Submit:
    """A question, or a registration."""
    owner = rng.choice(TENANTS)
    doc = f"{rng.choice(['op', owner])}/doc@{versions[owner]}"
    words = rng.choice(TEXTS)[: rng.randint(1, 9)]
    user = f"{owner}/{rng.choice('uv')}/{doc}"
    common = {
        "snapshot": snapshot,
        "idle_ms": rng.choice([50, 3_600_000]),
        "absolute_ms": rng.choice([200, 3_600_000]),
        "context": tag(rng.choice(["one", "one", "two"])),
    }
    if rng.random() < 0.15:
        whose = doc.split("/", maxsplit=1)[0]
        prompt = DOCUMENT[: rng.choice([8, 10])]
        pinned = scope(doc, len(prompt), pinned=True, covers=f"cover/{doc}")
        common["absolute_ms"] = rng.choice([None, common["absolute_ms"]])
        return labelled(request, prompt, pinned, owner=whose, warm=True, **common)
    prompt = DOCUMENT + words
    kind = rng.random()
    scopes = [scope(doc, len(DOCUMENT), pinned=True, covers=f"cover/{doc}")]
    if kind < 0.4:
        scopes, user = [scope(f"{owner}/all", len(DOCUMENT), disclosed=False)], f"{owner}/{user}+"
    elif kind < 0.5 and doc.startswith(owner):  # what its tenant's requests leave under its label
        scopes = [scope(doc, len(DOCUMENT), disclosed=False, covers=f"cover/{doc}")]
        user += "+"
    elif kind < 0.6:
        scopes, user = [], f"{owner}/{rng.choice('uv')}"
    covers = "" if len(scopes) == 0 or kind < 0.4 else f"cover/{doc}"
    return labelled(
        request,
        prompt,
        *scopes,
        scope(user, len(prompt), covers=covers),
        owner=owner,
        max_new_tokens=rng.randint(1, rng.choice([2, 6, 16])),
        queue_ms_max=rng.choice([None, None, None, 30]),
        **common,
    )


def play(seed: int, requests_max: int = 9) -> tuple[Witness, Harness]:
    rng = Random(seed)
    house = house_of(rng)
    witness = Witness(house)
    house.order(quotas_of(rng))
    versions = dict.fromkeys(TENANTS, 1)
    snapshot, number, made = 1, 0, 0
    jobs: dict[int, Submit] = {}
    revokes: list[Revoke] = []
    failing = rng.random() < 0.1

    def meddle() -> None:
        nonlocal snapshot, number, made
        dice = rng.random()
        if dice < 0.6:
            if made == requests_max:
                return
            made += 1
            old = max(1, snapshot - (rng.random() < 0.1))
            new = asked(rng, made, old, versions)
            earlier = [n for n, each in jobs.items() if not each.warm]
            if earlier and rng.random() < 0.2:
                leader = rng.choice(earlier)
                new = msgspec.structs.replace(jobs[leader], request=made, sibling=leader)
            if new.warm:
                house.warm_owners[made] = new.share[0][0]  # type: ignore[attr-defined]
            if rng.random() < 0.1:
                new = job(made, new.prompt, share=new.share, max_new_tokens=new.max_new_tokens)
            jobs[made] = new
            house.submit(new)
        elif dice < 0.615:
            snapshot, number = snapshot + 1, number + 1
            owner = rng.choice(TENANTS)
            doc = f"{rng.choice(['op', owner])}/doc@{versions[owner]}"
            named = rng.choice([doc, f"cover/{doc}", f"{owner}/all", f"{owner}/u"])
            order = Revoke(number=number, tags=(tag(named),), snapshot=snapshot)
            versions[owner] += rng.random() < 0.5
            revokes.append(order)
            house.order(order)
        elif dice < 0.62:
            number += 1
            whose = rng.choice([None, *TENANTS])
            house.order(Purge(number=number, owner=whose, spare=rng.random() < 0.5))
        elif dice < 0.63:
            house.order(quotas_of(rng))
        elif dice < 0.68:
            house.clock.now_ns += rng.choice([10, 60, 250]) * MS
        elif dice < 0.7 and jobs:
            house.abort(rng.choice(list(jobs)))

    def during(_: Batch) -> None:
        meddle()
        if failing and rng.random() < 0.05:
            raise RuntimeError

    house.runner.before = during
    for _ in range(600):
        if made == requests_max and not house.inbox and not house.engine.busy:
            break
        meddle()
        told = len(house.answers)
        witness.step()
        acknowledged = {each.number for each in house.answers[told:]}
        witness.hears(revokes, acknowledged)
        revokes = [each for each in revokes if each.number not in acknowledged]
    else:
        raise AssertionError("it does not come to an end")
    assert all(each.zeroed for each in house.answers)
    for n, each in jobs.items():
        end_well(house, n, each)
    house.assert_empty()
    house.runner.before = lambda _: None
    house.order(Purge(number=0))
    house.step()
    assert house.engine.gauges.kept_blocks == 0
    house.assert_empty()
    return witness, house


def end_well(house: Harness, n: int, asked: Submit) -> None:
    """It said what it says alone, as far as it came, and its account adds up."""
    last = house.ended(n)
    tokens = house.tokens(n)
    habits = house.runner.habits
    expected = alone(asked.prompt, len(tokens), habits)
    assert tokens == expected
    if last.cause is Cause.LENGTH:
        whole = last.prefilled + last.cached
        assert whole == len(asked.prompt) if asked.sibling is None else whole <= len(asked.prompt)
    assert 0 <= last.pinned <= last.cached
    assert asked.caching is not None or last.cached == 0
    assert not asked.warm or last.generated == 0


_ALONE: dict[tuple[tuple[int, ...], float], list[int]] = {}


def alone(prompt: tuple[int, ...], count: int, habits: float) -> list[int]:
    found = _ALONE.get((prompt, habits), [])
    if len(found) < count:
        found = _ALONE[prompt, habits] = greedy(prompt, count, VOCAB, habits)
    return found[:count]
