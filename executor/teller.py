"""What came out of a step for one request: how far it is, what it says, whether that was its last.

Refuses to know: queues, blocks, how a request ends.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from executor.choice import Choice
from executor.contract import Cause, Emitted, Prefilling
from executor.grammar.seats import Seats
from executor.outbox import Outbox
from executor.sequence import Phase, Sequence
from executor.totals import Totals


class Teller:
    """Owned by the engine.  `context_tokens`, `kv_tokens`: what one request may fill."""

    def __init__(
        self, out: Outbox, seats: Seats, totals: Totals, *, context_tokens: int, kv_tokens: int
    ) -> None:
        self._out = out
        self._seats = seats
        self._totals = totals
        self._room = (context_tokens, kv_tokens)

    def tell(self, seq: Sequence, choices: Seq[Choice], now_ns: int) -> tuple[Cause, str] | None:
        """Why it ends now, if it does.  `choices`: none for a chunk in the middle of a prompt, several
        where guesses held."""
        owner, request = seq.key
        if not seq.generated:
            self._out.say(
                owner,
                Prefilling(
                    request=request, done_tokens=seq.prompt_done, total_tokens=seq.prompt_tokens
                ),
            )
        if not choices:
            return None
        if seq.job.warm and choices[0].token is not None:
            return Cause.STOP, ""
        if seq.phase is not Phase.DECODE and choices[0].token is not None:
            seq.enter(Phase.DECODE, now_ns)
        said, cause = seq.extend([choice.token for choice in choices], *self._room)
        if said:
            self._totals.generated_tokens += len(said)
            if seq.said_ns is not None:
                self._totals.gaps.add(now_ns - seq.said_ns)
            seq.said_ns = now_ns
            logprobs = [c.logprobs for c in choices[: len(said)] if c.logprobs is not None]
            self._out.say(owner, Emitted(request=request, tokens=said, logprobs=tuple(logprobs)))
        if cause is Cause.CRASHED:
            return cause, "the model gave no numbers for this request"
        if cause is not None:
            return cause, ""
        self._seats.told(seq, said[-1])
        return None
