"""Token ids to text as they come, never splitting a character.

An incomplete UTF-8 sequence waits until its last byte is there, so an emoji over four tokens is one
delta; only `finish` and bytes that can never become a character give U+FFFD.  Every split of the
same ids gives the same text, and it is the text of all ids decoded at once, because the only state
is that of a UTF-8 decoder.  This is why it is not the library's `DecodeStream`, which decodes a
window of ids again at each step, raises "Invalid prefix" when a repaired character changes it, and
needs a prompt to keep SentencePiece's first space.  Here the first space stays: an answer continues
a prompt.

Refuses to know: which request, why it ends, stop strings.  Costs well under a microsecond a token.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from gateway.text.tokenizer import Vocabulary

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Of one answer.  A character that the prompt left half is not completed: nothing of a prompt
    shows in an answer."""

    __slots__ = ("_decoder", "_table")

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        skip_special_tokens: bool = True,
        printed: Sequence[bytes] | None = None,
    ) -> None:
        """`printed`: the bytes of each id, where they are others than the vocabulary's."""
        self._table = printed or vocabulary.printed_bytes(skip_special_tokens=skip_special_tokens)
        self._decoder = _UTF8("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; may be empty."""
        table = self._table
        return self._decoder.decode(b"".join([table[token] for token in ids]))

    @property
    def pending(self) -> bool:
        """Whether some bytes wait for the rest of their character."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """What is left of an incomplete character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
