"""One request's way through the kept prefixes: its chain values, what it took, what is kept of it.

Theory of operation.  `Trail` walks a prompt's full blocks from the first: while it waits, to see how much of it is
kept (`look`); when it is let in, taking that (`take`); while it runs, keeping what it computed after that
(`keep`), so what it reads or gave is always the beginning of its prompt, without a hole.  Values are computed once,
when first asked for.  Where sharing may not be told (`Scope.disclosed`) what is found stays hidden: the
request is planned, given memory, charged and reported as if it had to be computed, and is not.

Refuses to know: the queue, the model, labels' meaning.  Source: SECURITY.md §2; DESIGN.md, settled 3 and 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from executor.block_manager import BlockManager
from executor.contract import Cause, Submit
from executor.contract_cache import COVERS_MAX, SCOPES_MAX, Caching, Scope
from executor.prefix_cache import Entry, Place, PrefixCache
from executor.sequence import Sequence
from policies.scope.chain import Chain, ScopeKey, full_blocks, of_prompt
from policies.scope.encoding import pack
from policies.scope.residency import Ttl

_BYTES: Final = 32
_MS_MAX: Final = 366 * 24 * 3600 * 1000
_NS: Final = 1_000_000
_KEEPS: Final = frozenset({Cause.STOP, Cause.LENGTH, Cause.ABORTED})
"""Ends of requests whose words were computed as they should be."""

Contexts = Callable[[bytes], bytes]
"""From what the gateway knows of a context to the whole of it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Of each full block.  `context` is the whole of it; `chain` stands at the end of the prompt's last."""

    context: bytes
    chain: Chain
    values: tuple[bytes, ...]
    scopes: tuple[Scope, ...]
    packed: bytes

    @property
    def told(self) -> int:
        """How many of them may be told of, if they are found."""
        return next(
            (at for at, each in enumerate(self.scopes) if not each.disclosed), len(self.scopes)
        )


class Trail:
    """Of a request that names labels."""

    __slots__ = (
        "_blocks",
        "_cache",
        "_caching",
        "_contexts",
        "_ends_ns",
        "_entries",
        "_known",
        "_matched",
        "_open",
        "_told",
        "_ttl",
        "_wanted",
        "job",
    )

    def __init__(
        self,
        job: Submit,
        caching: Caching,
        cache: PrefixCache,
        blocks: BlockManager,
        contexts: Contexts,
    ) -> None:
        self.job = job
        self._caching = caching
        self._cache = cache
        self._blocks = blocks
        self._contexts = contexts
        self._known: _Known | None = None
        self._wanted = (len(job.prompt) - 1) // blocks.block_tokens  # its last token is computed
        self._told = 0
        self._matched: list[Entry] = []  # while it waits
        self._ends_ns: float = inf  # nothing of what was matched ends before
        self._entries: list[Entry] = []  # of the blocks that it holds
        self._open = True  # more may be kept
        absolute_ns = None if caching.absolute_ms is None else caching.absolute_ms * _NS
        idle_ns = (
            None if job.warm else caching.idle_ms * _NS
        )  # pinned: nobody's reading moves its end
        self._ttl = Ttl(absolute_ns, idle_ns, None)

    # Before it runs

    def look(self) -> int:
        """How many blocks it can take, as far as may be told.  Most often O(1): what was matched before is
        looked at again only where something of it ended, or may have."""
        self._walked()
        matched, cache = self._matched, self._cache
        if cache.now_ns >= self._ends_ns:
            matched.clear()
        while matched and matched[-1].ended:  # what hangs on it has ended too
            matched.pop()
        if not matched:
            self._ends_ns = inf
        while len(matched) < self._wanted:
            parent = matched[-1] if matched else None
            entry = cache.find(self._caching.owner, self._place(len(matched)), parent)
            if entry is None:
                break
            matched.append(entry)
            self._ends_ns = min(self._ends_ns, entry.ends_ns)
        return min(len(matched), self._told)

    def foresee(self) -> Cause | None:
        """Of a registration that is new here: how it ends without being computed, if it does."""
        self._walked()
        entries = self._registered([])
        missing = self._pinned_blocks - len(entries)
        if not missing:
            self._renew(entries)
            return Cause.STOP
        return None if self._cache.has_room(self._caching.owner, missing) else Cause.QUOTA

    def take(self, seq: Sequence, count: int) -> None:
        """Read what was found, the first `count` blocks openly."""
        self.look()
        entries, self._matched = self._matched, []
        assert count == min(len(entries), self._told), "the plan saw something else"
        blocks = [entry.block for entry in entries]
        self._blocks.take(seq, blocks[:count], blocks[count:])
        for entry in entries:
            self._cache.read(entry)
        self._entries = entries
        counts = self._cache.counts
        counts.hits += len(entries)
        counts.misses += self._wanted - len(entries)
        if count:
            size = self._blocks.block_tokens
            pinned = sum(entry.pinned for entry in entries[:count])
            seq.attach_kept(count * size, pinned * size)

    # While it runs

    def keep(self, seq: Sequence) -> None:
        """Of its prompt, what is computed and full by now."""
        full = min(seq.computed, seq.prompt_tokens) // self._blocks.block_tokens
        while seq.hidden and seq.pooled < full:
            self._blocks.appear(seq)
        if not (self.job.warm or seq.hidden):
            self._keep_to(seq, full)

    def close(self) -> None:
        """Nothing more is kept of what it computed so far: what it stands under was purged meanwhile."""
        self._open = False

    def pin(self, seq: Sequence) -> bool:
        """A registration, all of whose prompt is computed: what is pinned is kept as a whole, or not at all."""
        if not self._open:
            return False
        entries = self._registered(list(self._entries))  # also what another registered meanwhile
        missing = range(len(entries), self._pinned_blocks)
        done = self._cache.pin(
            self._caching.owner,
            [self._place(at) for at in missing],
            entries[-1] if entries else None,
            self._ttl,
            [seq.blocks[at] for at in missing],
        )
        if done:
            self._renew(entries)
        return done

    def leave(self, seq: Sequence, cause: Cause | None) -> None:
        """It lets go of all its blocks: at its end, or (None) put out."""
        if cause in _KEEPS and seq.blocks and not self.job.warm:
            self._keep_answer(seq)
        elif cause is Cause.CRASHED:  # whatever is wrong with it is not handed on
            for entry in self._entries:
                if not entry.pinned:
                    self._cache.end(entry)
        self._entries, self._open = [], True

    def follow(self, leader: Trail, seq: Sequence) -> None:
        """It reads its leader's blocks, of which the first `seq.pooled` are kept."""
        self._known = leader._known
        self._entries = leader._entries[: seq.pooled]
        self._open = leader._open

    # Within

    def _walked(self) -> None:
        if self._known is None:
            size = self._blocks.block_tokens
            context = self._contexts(self._caching.context)
            self._known = _walk(self.job, self._caching, context, size)
            self._told = self._known.told

    @property
    def _pinned_blocks(self) -> int:
        assert self._known is not None
        return sum(scope.pinned for scope in self._known.scopes)

    def _registered(self, entries: list[Entry]) -> list[Entry]:
        """The beginning of what is pinned that is there, `entries` of it known."""
        for at in range(len(entries), self._pinned_blocks):
            parent = entries[-1] if entries else None
            entry = self._cache.find(self._caching.owner, self._place(at), parent)
            if entry is None:
                break
            entries.append(entry)
        return entries

    def _renew(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._cache.renew(self._caching.owner, entry, self._ttl)

    def _place(self, at: int) -> Place:
        known = self._known
        assert known is not None
        width = 4 * self._blocks.block_tokens
        tokens = known.packed[at * width : (at + 1) * width]
        return Place(known.values[at], known.context, known.scopes[at], tokens)

    def _keep_to(self, seq: Sequence, full: int) -> None:
        """As far as it goes: after a block that is not kept none is, else it hung on nothing."""
        entries = self._entries
        while self._open and seq.pooled < full:
            at = seq.pooled
            assert len(entries) == at
            owner, place = self._caching.owner, self._place(at)
            parent = entries[-1] if entries else None
            entry = self._cache.find(owner, place, parent)
            if self._blocks.is_shared(seq.blocks[at]):
                self._open = False
                return
            if entry is not None:  # another brought the same meanwhile
                self._blocks.adopt(seq, entry.block)
                self._cache.read(entry)
            else:
                entry = self._cache.keep(owner, place, parent, self._ttl, seq.blocks[at])
                if entry is None:
                    self._open = False
                    return
                seq.pooled += 1
            entries.append(entry)

    def _keep_answer(self, seq: Sequence) -> None:
        """What was said and computed has the label of the prompt's end.  Guesses that did not hold lie
        behind what counts as computed."""
        known, size = self._known, self._blocks.block_tokens
        self.keep(seq)
        if known is None or seq.pooled * size != known.chain.position:
            return
        full = seq.computed // size
        said = seq.tokens[known.chain.position : full * size]
        last = self._caching.scopes[-1]
        _, values = known.chain.extend(ScopeKey(last.label, last.key), said)
        self._known = replace(
            known,
            values=known.values + values,
            scopes=known.scopes + (last,) * len(values),
            packed=known.packed + pack(said),
        )
        self._keep_to(seq, full)


def _walk(job: Submit, caching: Caching, context: bytes, size: int) -> _Known:
    keys = [(each.until, ScopeKey(each.label, each.key)) for each in caching.scopes]
    chain, found = of_prompt(job.prompt, keys, context, size)
    counts = full_blocks([until for until, _ in keys], size)
    runs = zip(caching.scopes, counts, strict=True)
    scopes = tuple(scope for scope, blocks in runs for _ in range(blocks))
    packed = pack(job.prompt[: chain.position])
    return _Known(context, chain, tuple(value for _, value in found), scopes, packed)


def fault(job: Submit) -> str | None:
    """Why what it says of labels cannot be, or None.  The gateway should have caught it.  Names no bytes."""
    caching = job.caching
    if caching is None:
        return "a warm submit needs caching" if job.warm else None
    scopes = caching.scopes
    if not job.share or caching.owner != job.share[0][0]:
        return "caching.owner must be the first of share"
    if len(caching.context) != _BYTES:
        return f"caching.context must be {_BYTES} bytes"
    if not 1 <= len(scopes) <= SCOPES_MAX:
        return f"caching needs 1 to {SCOPES_MAX} scopes"
    if any(len(each.label) != _BYTES or len(each.key) != _BYTES for each in scopes):
        return f"a scope's label and key must be {_BYTES} bytes each"
    if any(len(each.covers) > COVERS_MAX for each in scopes):
        return f"a scope has at most {COVERS_MAX} covers"
    if any(len(cover) != _BYTES for each in scopes for cover in each.covers):
        return f"a cover must be {_BYTES} bytes"
    ends = [0, *(each.until for each in scopes)]
    if ends != sorted(ends) or ends[-1] != len(job.prompt):
        return "scopes must follow one another, and the last end with the prompt"
    if len({each.label for each in scopes}) < len(scopes):
        return "each scope needs a label of its own"
    if [each.pinned for each in scopes] != sorted((each.pinned for each in scopes), reverse=True):
        return "pinned scopes come before all others"
    if any(each.pinned and not each.disclosed for each in scopes):
        return "what is pinned is always disclosed"
    absolute_ms = caching.absolute_ms
    if absolute_ms is None and not job.warm:
        return "absolute_ms may be left out of a warm submit alone"
    named_ms = (caching.idle_ms,) if absolute_ms is None else (caching.idle_ms, absolute_ms)
    if not all(1 <= each <= _MS_MAX for each in named_ms):
        return f"idle_ms and absolute_ms must be 1 to {_MS_MAX}"
    if job.warm and (job.grammar or job.sibling is not None or not scopes[0].pinned):
        return "a warm submit has a pinned scope, no grammar and no sibling"
    return None
