"""The engine's side of speculation: which rows of a step carry guesses, and where they held.

Each position is sampled as without guesses: the same seed, the same tokens before it, the same rules.
A guess holds where it is what was sampled, and only then is the position after it sampled at all; so
the answer is the same, and no row costs the sampler more.  Guesses go into blocks that the sequence
has already: nothing is allocated for them, nobody is put out for them.

Refuses to know: reports, clocks, the queues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from executor.batch import Row
from executor.choice import Ask, Choice
from executor.cost import Rates, Share
from executor.draft import Lookup
from executor.scheduler.protocol import Chunk
from executor.sequence import Key, Sequence
from executor.speculation import Hope, Outcome, Purse

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class _Notes:
    """On one sequence."""

    lookup: Lookup
    hope: Hope


class Planned(NamedTuple):
    """A row of a step: `known` tokens of `seq`, then `guesses`.  `hint` is what the first guess
    was, run or not.  `wants`: it reaches the end of what is known."""

    seq: Sequence
    generation: int
    start: int
    known: int
    lost: int
    wants: bool
    guesses: Seq[int] = ()
    hint: int | None = None
    skipped: int = 0  # of `known`, the first so many are kept, and nobody may know

    def row(self) -> Row:
        start = self.start + self.skipped
        tokens = self.seq.tokens[start : self.start + self.known]
        tokens.extend(self.guesses)
        return Row(tokens, start, self.seq.places, self.wants, len(self.guesses))

    @property
    def runs(self) -> int:
        """Tokens that the model computes."""
        return self.known - self.skipped + len(self.guesses)

    def share(self, found: Mapping[Key, Seq[Choice]]) -> Share:
        """For the bill, once it is `found` what was sampled."""
        if self.skipped:
            lost = max(0, self.lost - self.skipped)
            return Share(self.known - self.skipped, self.start + self.skipped, lost)
        if not self.guesses:
            return Share(self.known, self.start, self.lost)
        missed = len(self.guesses) - held(found.get(self.seq.key, ()))
        return Share(self.known + len(self.guesses), self.start, self.lost, missed)


class Guesser:
    """Owned by the engine."""

    def __init__(self, block_tokens: int, context_tokens: int, *, on: bool) -> None:
        self._block_tokens = block_tokens
        self._context_tokens = context_tokens
        self._on = on
        self._notes: dict[Key, _Notes] = {}
        self.purse = Purse()

    def plan(self, chunks: Seq[Chunk[Sequence]], rates: Rates) -> list[Planned]:
        """Rows of one token first, as a Batch is.  Blocks have been given out."""
        able = self._on and self.purse.begin(rates, len(chunks))
        planned = [self._row(chunk, able) for chunk in chunks]
        if any(row.guesses or row.skipped for row in planned):
            planned.sort(key=lambda row: row.runs > 1)
        return planned

    def settle(
        self,
        planned: Seq[Planned],
        found: Mapping[Key, Seq[Choice]],
        rates: Rates,
        measured_ns: int,
    ) -> None:
        """Learn from a step; `rates` are those it was planned by."""
        if not self._on:
            return
        outcomes = []
        for row in planned:
            if row.hint is None:
                continue
            choices = found.get(row.seq.key, ())
            if choices:
                hope = self._notes[row.seq.key].hope
                hope.saw(choices[0].token == row.hint)
                for guess, choice in zip(row.guesses[1:], choices[1:], strict=False):
                    hope.saw(choice.token == guess)
            if row.guesses:
                outcomes.append(Outcome(row.start, len(row.guesses), held(choices)))
        plain_ns = float(measured_ns)
        if outcomes:
            plain_ns = rates.step_ns + sum(rates.row_ns(row.known, row.start) for row in planned)
        self.purse.settle(measured_ns, plain_ns, outcomes)

    def forget(self, key: Key) -> None:
        self._notes.pop(key, None)

    def _row(self, chunk: Chunk[Sequence], able: bool) -> Planned:
        seq = chunk.seq
        start = seq.computed
        end = start + chunk.count
        wants = end == len(seq.tokens)
        lost = min(end, seq.high_water) - start if start < seq.high_water else 0
        guesses: list[int] = []
        hint = None
        if able and wants and chunk.count == 1 and seq.generated and seq.job.grammar is None:
            notes = self._notes.get(seq.key)
            if notes is None:
                notes = self._notes[seq.key] = _Notes(Lookup(), Hope())
            guesses = notes.lookup.guesses(seq.tokens)
            if guesses:
                hint = guesses[0]
                offered = min(len(guesses), self._room(seq, end), _until_stop(guesses, seq))
                guesses = guesses[: self.purse.grant(start, notes.hope.rate, offered)]
        skipped = 0
        if seq.hidden:
            hidden_end = (seq.pooled + len(seq.hidden)) * self._block_tokens
            skipped = max(0, min(end, hidden_end) - start)
        return Planned(seq, seq.generation, start, chunk.count, lost, wants, guesses, hint, skipped)

    def _room(self, seq: Sequence, end: int) -> int:
        """How many guesses could all hold without going past anything: its blocks, what it may say,
        the context."""
        blocks = len(seq.blocks) * self._block_tokens - end
        say = seq.job.max_new_tokens - seq.generated - 1
        return max(0, min(blocks, say, self._context_tokens - end - 1))


Sift = Callable[[list[Sequence], "Tensor"], tuple[list[Sequence], list[Ask], "Tensor"]]
Sample = Callable[["Tensor", list[Ask]], list[Choice]]


def choose(
    planned: Seq[Planned], gone: Collection[Key], logits: Tensor, sift: Sift, sample: Sample
) -> dict[Key, list[Choice]]:
    """What was sampled for each row that wanted it and is not `gone`: as many tokens as guesses held,
    and one more.  `sift` says who can be sampled now, and what they ask."""
    if not gone and not any(row.guesses for row in planned):
        asking, asks, logits = sift([row.seq for row in planned if row.wants], logits)
        choices = sample(logits, asks) if asking else ()
        return {seq.key: [each] for seq, each in zip(asking, choices, strict=True)}
    firsts: dict[Key, int] = {}
    rows: dict[Key, Planned] = {}
    at = 0
    for row in planned:
        if row.wants:
            if row.seq.key not in gone:
                firsts[row.seq.key], rows[row.seq.key] = at, row
            at += len(row.guesses) + 1
    assert at == logits.shape[0]
    wanted = logits[list(firsts.values())] if len(firsts) < at else logits
    asking, asks, wanted = sift([row.seq for row in rows.values()], wanted)
    found: dict[Key, list[Choice]] = {}
    while asking:
        for seq, choice in zip(asking, sample(wanted, asks), strict=True):
            found.setdefault(seq.key, []).append(choice)
        asking = [seq for seq in asking if _held_so_far(rows[seq.key], found[seq.key])]
        if asking:
            depth = len(found[asking[0].key])
            wanted = logits[[firsts[seq.key] + depth for seq in asking]]
            asks = [seq.ask(said=rows[seq.key].guesses[:depth]) for seq in asking]
    return found


def held(choices: Seq[Choice]) -> int:
    """How many guesses held: each brought another choice."""
    return max(0, len(choices) - 1)


def _held_so_far(row: Planned, choices: Seq[Choice]) -> bool:
    """Whether the guess at the last position was right, so that the next one means something."""
    at = len(choices) - 1
    return at < len(row.guesses) and choices[at].token == row.guesses[at]


def _until_stop(guesses: Seq[int], seq: Sequence) -> int:
    """Nothing follows a stop token, so it is no use as a guess."""
    for at, token in enumerate(guesses):
        if token in seq.stop_ids:
            return at
    return len(guesses)
