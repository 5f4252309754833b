"""One answer's token ids to what is shown of it: detokenised, cut at stop strings, with
log-probabilities that agree with the text.

The tokens given out, joined, are the text, and their bytes, joined, its UTF-8 (API.md §2, case 29).
So a token that only begins a character has the text "" and the one that completes it has all of it;
a token across the cut of a stop string is itself cut; skipped special tokens do not appear.
Refuses to know: choices, chunks, JSON, and why an answer ends except by a stop string.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from executor.contract import Logprob, TokenLogprobs
from gateway.text.detokenize import Detokenizer
from gateway.text.stops import Automaton, StopStrings
from gateway.text.tokenizer import Vocabulary


@dataclass(frozen=True, slots=True)
class ShownToken:
    """`text` and `raw` as shown; `top` are the likeliest at this place, as ids."""

    text: str
    raw: bytes
    chosen: Logprob
    top: tuple[Logprob, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """`stopped`: a stop string was completed; there is no more text and the turn can be left."""

    text: str
    tokens: tuple[ShownToken, ...] = ()
    stopped: bool = False


class Reply:
    """Of one choice.  `stop_ids` end generation and are never printed."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: Automaton | Sequence[str] = (),
        stop_ids: frozenset[int] = frozenset(),
        logprobs: bool = False,
        skip_special_tokens: bool = True,
        printed: Sequence[bytes] | None = None,
    ) -> None:
        """`printed`: the bytes of each id, where they are others than the vocabulary's."""
        self._printed = printed or vocabulary.printed_bytes(skip_special_tokens=skip_special_tokens)
        self._detokenizer = Detokenizer(vocabulary, printed=self._printed)
        self._stops = StopStrings(stops)
        self._stop_ids = stop_ids
        self._logprobs = logprobs
        self._made = 0  # characters detokenised
        self._shown = 0  # characters given out
        # Characters detokenised once this token was, and those that must be shown before it is:
        # one more where it leaves a character incomplete.
        self._waiting: deque[tuple[int, int, ShownToken]] = deque()

    @property
    def stopped_by(self) -> int | None:
        """Which of the stop strings was completed."""
        return self._stops.found

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> Piece:
        """`logprobs` one a token where asked for."""
        if self._stops.hit:
            return Piece("", stopped=True)
        if not self._logprobs:
            if not self._stop_ids.isdisjoint(tokens):
                tokens = [token for token in tokens if token not in self._stop_ids]
            text, hit = self._stops.push(self._detokenizer.push(tokens))
            return Piece(text, stopped=hit)
        assert len(logprobs) == len(tokens)
        text, hit = self._stops.push("".join(map(self._note, tokens, logprobs)))
        return self._release(text, ended=hit)

    def finish(self) -> Piece:
        """What was held back, once no more tokens come."""
        if self._stops.hit:
            return Piece("", stopped=True)
        tail = self._detokenizer.finish()
        if tail and self._waiting:
            # A broken character shows as U+FFFD, which belongs to the last of its tokens.
            made, needed, token = self._waiting[-1]
            self._made = made + len(tail)
            self._waiting[-1] = (self._made, needed, replace(token, text=token.text + tail))
        text, hit = self._stops.push(tail)
        if not hit:
            text += self._stops.flush()
        return self._release(text, ended=True)

    def _note(self, token: int, logprobs: TokenLogprobs) -> str:
        """Detokenise one token and remember what it showed."""
        raw = b"" if token in self._stop_ids else self._printed[token]
        if not raw:
            return ""
        text = self._detokenizer.push((token,))
        self._made += len(text)
        needed = self._made + self._detokenizer.pending
        shown = ShownToken(text, raw, logprobs.chosen, logprobs.top)
        self._waiting.append((self._made, needed, shown))
        return text

    def _release(self, text: str, *, ended: bool) -> Piece:
        """Give out `text` and the tokens that are wholly in it; at the end, cut the last one."""
        self._shown += len(text)
        tokens: list[ShownToken] = []
        while self._waiting and self._waiting[0][1] <= self._shown:
            tokens.append(self._waiting.popleft()[2])
        while ended and self._waiting:
            made, _, token = self._waiting.popleft()
            kept = token.text[: max(0, len(token.text) - (made - self._shown))]
            if kept:
                tokens.append(replace(token, text=kept, raw=kept.encode()))
        return Piece(text, tuple(tokens), self._stops.hit)
