"""What an answer says and calls, in order, with log-probabilities that agree with what is shown of it.

Between `text/reply` (which gives text and its tokens) and `telling`.  Where log-probabilities were asked for, text is
given out with its tokens, joined its text; a token that stands across the end of text is cut, and those of calls are not shown.
Refuses to know: how calls are written, choices, JSON.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.text.reply import Piece, ShownToken
from gateway.tools.calls import CallPart
from gateway.tools.reader import Called, Reader, Said


@dataclass(frozen=True, slots=True)
class Heard:
    """Text, and after it parts of calls."""

    text: str
    shown: tuple[ShownToken, ...] = ()
    calls: tuple[CallPart, ...] = ()


class Hearing:
    """Of one choice."""

    def __init__(self, reader: Reader, *, logprobs: bool = False) -> None:
        self._reader = reader
        self._logprobs = logprobs
        self._ready: deque[Said | Called] = deque()
        # Where each token's text begins in what was read; and where the last one's ends.
        self._tokens: deque[tuple[int, ShownToken]] = deque()
        self._end = 0

    @property
    def done(self) -> bool:
        """The one call that may be made is complete: the answer is over."""
        return self._reader.done

    @property
    def called(self) -> bool:
        """Calls were made that can be run: the last one is whole, too."""
        return self._reader.calls > 0 and self._reader.whole

    def push(self, piece: Piece) -> list[Heard]:
        self._ready.extend(self._reader.push(piece.text))
        for token in piece.tokens:
            self._tokens.append((self._end, token))
            self._end += len(token.text)
        return self._release()

    def finish(self) -> list[Heard]:
        """What was held back, once no more comes."""
        self._ready.extend(self._reader.finish())
        return self._release(over=True)

    def _release(self, *, over: bool = False) -> list[Heard]:
        if not self._logprobs:
            ready, self._ready = self._ready, deque()
            return _grouped(
                [each.part if isinstance(each, Called) else (each.text, ()) for each in ready]
            )
        until = self._reader.read if over else self._decided()
        parts = self._with_tokens(until)
        while not self._ready and self._tokens and self._tokens[0][0] < until:
            at, token = self._tokens[0]
            if at + len(token.text) > until:
                break
            self._tokens.popleft()  # of a call
        return _grouped(parts)

    def _decided(self) -> int:
        """Where the last token ends of which all is decided."""
        end = 0
        for at, token in self._tokens:
            if at + len(token.text) > self._reader.decided:
                break
            end = at + len(token.text)
        return end

    def _with_tokens(self, until: int) -> list[tuple[str, tuple[ShownToken, ...]] | CallPart]:
        out: list[tuple[str, tuple[ShownToken, ...]] | CallPart] = []
        while self._ready:
            first = self._ready[0]
            if isinstance(first, Called):
                if first.end > until:
                    break
                out.append(first.part)
            else:
                if first.at >= until:
                    break
                if first.end > until:
                    kept = until - first.at
                    self._ready[0] = Said(until, first.chars[kept:])
                    first = Said(first.at, first.chars[:kept])
                    out.append((first.text, self._of(first)))
                    break
                out.append((first.text, self._of(first)))
            self._ready.popleft()
        return out

    def _of(self, said: Said) -> tuple[ShownToken, ...]:
        """The tokens of this text, cut to it.  One that only begins a character has no text, and goes with the
        one that ends it."""
        shown: list[ShownToken] = []
        while self._tokens and self._tokens[0][0] < said.end:
            at, token = self._tokens[0]
            end = at + len(token.text)
            if end <= said.at and at < said.at:
                self._tokens.popleft()
                continue
            text = token.text[max(0, said.at - at) : said.end - at]
            if text == token.text:
                shown.append(token)
            elif text:
                shown.append(replace(token, text=text, raw=text.encode()))
            if end > said.end:
                break
            self._tokens.popleft()
        return tuple(shown)


def _grouped(
    parts: Sequence[tuple[str, tuple[ShownToken, ...]] | CallPart],
) -> list[Heard]:
    """As few as keep the order: text first, then calls."""
    heard: list[Heard] = []
    for part in parts:
        last = heard[-1] if heard else None
        if isinstance(part, CallPart):
            if last is None:
                heard.append(Heard("", (), (part,)))
            else:
                heard[-1] = replace(last, calls=(*last.calls, part))
        elif last is not None and not last.calls:
            heard[-1] = Heard(last.text + part[0], last.shown + part[1])
        else:
            heard.append(Heard(*part))
    return heard
