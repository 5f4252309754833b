"""Text to token ids and back, for one model, from the card that its executor sent.

Two readings of a string.  A chat template's *scaffold* may yield special ids; *content* (whatever a
client, a document or a registered template supplied) never does: pasted control markers stay text
(DESIGN.md, settled question 2).  Content therefore has a tokenizer of its own, in which every
forbidden token is renamed to random text that nobody can type: neither the matcher of added tokens
nor the model's vocabulary can reach its id.  What might still come out is dropped.

Decoding goes by bytes: each id stands for fixed bytes, and text is those bytes read as UTF-8.  That
is what the library's decoders compute, but one id at a time and without ever failing.

Refuses to know: files, requests, roles.  Holds no cache of any text (SECURITY.md §3).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer

from executor.contract import ModelCard
from gateway.text.tokenizer_json import TokenizerFault, decoder_of, unprefixed, without

NO_IDS: frozenset[int] = frozenset()


class Vocabulary:
    """Immutable once built and safe to share between threads."""

    def __init__(
        self, card: ModelCard, *, mint: Callable[[], str] = lambda: secrets.token_hex(16)
    ) -> None:
        """`mint` names the unreachable tokens.  Raises TokenizerFault."""
        try:
            document: dict[str, Any] = msgspec.json.decode(card.tokenizer_json)
            # Truncation would lose text silently; a post-processor would add what we add ourselves.
            document |= {"truncation": None, "padding": None, "post_processor": None}
            added = document.get("added_tokens") or []
            marked = frozenset(token["id"] for token in added if token["special"])
            self.size = card.vocab_size
            self.context_tokens = card.context_tokens
            self.bos_token_id = card.bos_token_id
            self.eos_token_ids = card.eos_token_ids
            self.forbidden_ids = frozenset(card.special_token_ids) | marked
            self.skipped_ids = marked.union(card.eos_token_ids)
            plain = without(document, self.forbidden_ids, mint)
            self._scaffold_start = _load(document)
            self._content_start = _load(plain)
            middle = unprefixed(document)
            same = middle == {"normalizer": None, "pre_tokenizer": None} | document
            self._scaffold = self._scaffold_start if same else _load(middle)
            self._content = self._content_start if same else _load(unprefixed(plain))
            self._strips, to_bytes = decoder_of(document.get("decoder"))
            names: dict[int, str] = {token["id"]: token["content"] for token in added}
            texts = [b""] * self.size
            for text, token in self._scaffold.get_vocab(with_added_tokens=True).items():
                if token < self.size:
                    texts[token] = names[token].encode() if token in names else to_bytes(text)
        except TokenizerFault:
            raise
        except Exception as error:  # the library raises bare Exception for a malformed document
            raise TokenizerFault(f"The model's tokenizer.json cannot be read: {error}") from error
        self._bytes = texts
        self._normalises = document.get("normalizer") is not None
        self._printed = [b"" if i in self.skipped_ids else raw for i, raw in enumerate(texts)]
        self._longest_bytes = max(1, *map(len, texts))
        self._special_ids = {self.special_text(i): i for i in self.forbidden_ids if self.holds(i)}
        self._special_ids.pop("", None)
        self._special_texts = tuple(sorted(self._special_ids))

    @classmethod
    def from_card(cls, card: ModelCard) -> Vocabulary:
        """Raises TokenizerFault, a sentence for the operator."""
        return cls(card)

    def encode_scaffold(self, text: str, *, start: bool = False) -> list[int]:
        """Ids of trusted text; special tokens are recognised.  `start`: at the start of a prompt,
        where SentencePiece models put a space in front."""
        tokenizer = self._scaffold_start if start else self._scaffold
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_content(self, text: str, *, start: bool = False) -> list[int]:
        """Ids of anybody's text, never one of `forbidden_ids`.

        A character that the model has no token for yields nothing.  It would yield `unk`, and where
        that is a special token (SmolLM2's vocabulary lacks 21 bytes) a control character in a
        prompt would become `<|endoftext|>`."""
        tokenizer = self._content_start if start else self._content
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if self.forbidden_ids.isdisjoint(ids):
            return ids
        return [token for token in ids if token not in self.forbidden_ids]

    def fewest_tokens(self, text: str) -> int:
        """A lower bound on the tokens of `text`, without tokenising: what can never fit is refused
        cheaply.  (Characters that yield nothing are counted; who sends only those has no prompt.)"""
        if self._normalises:  # composition makes one character of at most three
            return len(text) // (3 * self._longest_bytes)
        return len(text.encode()) // self._longest_bytes

    def mentions_special(self, text: str) -> bool:
        """Whether the text of a forbidden token occurs in `text`."""
        return any(special in text for special in self._special_texts)

    def special_id(self, text: str) -> int | None:
        """The control token that is written so."""
        return self._special_ids.get(text)

    def special_text(self, token: int | None) -> str:
        """How a template's scaffold writes this token (`bos_token`, `eos_token`)."""
        return "" if token is None else self.token_bytes(token).decode("utf-8", "replace")

    def holds(self, token: int) -> bool:
        return 0 <= token < self.size

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids` at the start of a document, where SentencePiece's first space is cut.
        Raises ValueError for an id that is not in the vocabulary."""
        table = self.printed_bytes(skip_special_tokens=skip_special_tokens)
        text = b"".join([table[self._checked(i)] for i in ids]).decode("utf-8", "replace")
        return text[1:] if self._strips and text.startswith(" ") else text

    def token_bytes(self, token: int) -> bytes:
        """Exactly what this id adds to a text; b"" where the vocabulary has a hole."""
        return self._bytes[self._checked(token)]

    def token_text(self, token: int) -> str:
        r"""Printable; a part of a character is written `bytes:\xe2\x82`, as OpenAI does."""
        raw = self.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def printed_bytes(self, *, skip_special_tokens: bool) -> Sequence[bytes]:
        """Bytes by id, as they are printed: b"" for what is skipped."""
        return self._printed if skip_special_tokens else self._bytes

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.size:
            raise ValueError(f"token id {token} is not in 0..{self.size - 1}")
        return token


def _load(document: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(msgspec.json.encode(document).decode())
