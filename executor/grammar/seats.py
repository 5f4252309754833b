"""The engine's side of grammars: who waits for a compiler, and who for a mask.

A sequence with a grammar is `pending` until it is compiled, and stands in no queue meanwhile.  When
its logits come and its mask does not, it is put aside with its row of logits, keeps its place and its
blocks, and is sampled once the mask is there: no step waits, and nothing is computed twice.  A
preemption makes the row worthless and leaves the grammar as it is.

Refuses to know: processes, the queues, the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.choice import Ask, Choice
from executor.contract import Cause
from executor.grammar.protocol import Grammars, News, NoGrammars
from executor.sampler import sample
from executor.sequence import Key, Sequence

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Aside:
    seq: Sequence
    generation: int
    logits: Tensor


class Seats:
    """Owned by the engine."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars or NoGrammars()
        self._pending: dict[Key, Sequence] = {}
        self._aside: dict[Key, _Aside] = {}

    @property
    def pending(self) -> Collection[Sequence]:
        return self._pending.values()

    @property
    def waited_for(self) -> bool:
        """Whether something is to come from outside that lets a sequence go on."""
        return bool(self._pending or self._aside)

    def file(self, seq: Sequence) -> bool:
        """A newcomer.  False if it has no grammar, and so nothing to do with this."""
        if seq.job.grammar is None:
            return False
        self._pending[seq.key] = seq
        user = tuple(name for name, _ in seq.job.share)
        self._grammars.open(seq.key, user, seq.job.grammar)
        return True

    def forget(self, seq: Sequence) -> bool:
        """It ended.  True if it was pending, and so stood in no queue."""
        if seq.job.grammar is None:
            return False
        self._grammars.close(seq.key)
        self._aside.pop(seq.key, None)
        return self._pending.pop(seq.key, None) is not None

    def news(self) -> Iterator[News | Sequence]:
        """Sequences whose grammar is compiled, and bad news; both about living ones or dead."""
        for each in self._grammars.news():
            if each.cause is not None:
                yield each
            elif (seq := self._pending.pop(each.key, None)) is not None:
                yield seq

    def sift(
        self, asking: list[Sequence], logits: Tensor
    ) -> tuple[list[Sequence], list[Ask], Tensor]:
        """Those that can be sampled now, what they ask, and their rows.  The others are put aside."""
        asks = [self._ask(seq) for seq in asking]
        kept = [i for i, ask in enumerate(asks) if ask is not None]
        if len(kept) < len(asking):
            for i in set(range(len(asking))).difference(kept):
                seq = asking[i]  # the tensor is the model's again at the next step: a copy
                self._aside[seq.key] = _Aside(seq, seq.generation, logits[i].clone())
            logits = logits[kept]
        return [asking[i] for i in kept], [ask for ask in asks if ask is not None], logits

    def late(self) -> Iterator[tuple[Sequence, Choice]]:
        """What was put aside and can be sampled now.  A row from before a preemption is dropped: it
        is computed again."""
        for key, row in list(self._aside.items()):
            if row.generation != row.seq.generation:
                del self._aside[key]
            elif (ask := self._ask(row.seq)) is not None:
                del self._aside[key]
                yield row.seq, sample(row.logits.unsqueeze(0), [ask])[0]

    def told(self, seq: Sequence, token: int) -> None:
        """`token` was said and it goes on: have the next mask worked out while the model runs."""
        if seq.job.grammar is not None:
            self._grammars.advance(seq.key, token)

    def _ask(self, seq: Sequence) -> Ask | None:
        """None while its mask is being worked out."""
        if seq.job.grammar is None:
            return seq.ask()
        mask = self._grammars.mask(seq.key)
        return None if mask is None else seq.ask(mask)


def gone(news: News) -> tuple[Key, Cause, str]:
    """Bad news, as the engine ends a request with it."""
    assert news.cause is not None
    return news.key, news.cause, news.detail
