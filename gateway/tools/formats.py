"""In which form a model writes calls of tools, and what of it a detokeniser would hide.

Chosen by the model's chat template and its control tokens.  Where a marker is a control token, which is not shown, it is
printed as a character that no text has, for the reader alone.
Refuses to know: requests, answers.  Source: API.md §5 (tool formats); the chat templates of the families named below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.text.tokenizer import Vocabulary
from gateway.tools.asked import Choosing, Tools
from gateway.tools.reader import Made, Reader, Spelling

_OPENS, _CLOSES, _BETWEEN = "\ufdd0", "\ufdd1", "\ufdd2"
"""Noncharacters: for a program's own use, and in no text (Unicode, chapter 23.7)."""


class Format(StrEnum):
    HERMES = "hermes"  # <tool_call>{…}</tool_call>: Hermes, Qwen 2.5 and 3
    SMOLLM2 = "smollm2"  # the same around a list
    LLAMA3_JSON = "llama3_json"  # {"name": …, "parameters": {…}}, perhaps after <|python_tag|>
    MISTRAL = "mistral"  # [TOOL_CALLS] and a list, or a name and its arguments


_PLAIN = {
    Format.HERMES: Spelling("<tool_call>", "</tool_call>"),
    Format.SMOLLM2: Spelling("<tool_call>", "</tool_call>"),
    Format.LLAMA3_JSON: Spelling("<|python_tag|>", bare=True, separator=";"),
    Format.MISTRAL: Spelling("[TOOL_CALLS]", named=True),
}
_BETWEEN_TEXTS = ("[CALL_ID]", "[ARGS]")


def format_of(template: str, vocabulary: Vocabulary, *, shows: bool) -> Format | None:
    """None: the template shows tools in a form that is not known here.  `shows`: it shows them by itself."""

    def marks(text: str) -> bool:
        return text in template or vocabulary.special_id(text) is not None

    if marks("[TOOL_CALLS]"):
        return Format.MISTRAL
    if marks("<|python_tag|>"):
        return Format.LLAMA3_JSON
    if shows:
        # Qwen3-Coder's calls begin alike, and go on in a markup of its own.
        known = "<tool_call>" in template and "<function=" not in template
        return Format.HERMES if known else None
    return Format.SMOLLM2 if "SmolLM" in template else Format.HERMES


@dataclass(frozen=True, slots=True)
class Style:
    """One model's.  `shows`: its chat template shows tools by itself; else they are shown for it (`taught`).
    `spelling` and `printed` (bytes by id) go together, for answers without control tokens.  `ids`: of the markers
    that are control tokens."""

    format: Format
    shows: bool
    spelling: Spelling
    printed: Sequence[bytes]
    ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def plain(self) -> Spelling:
        return _PLAIN[self.format]

    @property
    def between(self) -> bool:
        """A control token stands between a name and its arguments."""
        return "[ARGS]" in self.ids

    def marker(self, text: str) -> str:
        """In a grammar."""
        return f"<[{self.ids[text]}]>" if text in self.ids else json.dumps(text)

    @classmethod
    def of(
        cls, template: str, vocabulary: Vocabulary, *, shows: bool, said: Format | None = None
    ) -> Style | None:
        """None where its calls could not be read.  `said`: they are known to be of this form."""
        found = said or format_of(template, vocabulary, shows=shows)
        if found is None:
            return None
        plain = _PLAIN[found]
        marks = {plain.opens: _OPENS, plain.closes: _CLOSES}
        marks |= dict.fromkeys(_BETWEEN_TEXTS if plain.named else (), _BETWEEN)
        found_ids = {text: vocabulary.special_id(text) for text in marks}
        ids = {text: token for text, token in found_ids.items() if token is not None}
        hidden = {text: token for text, token in ids.items() if token in vocabulary.skipped_ids}
        printed = list(vocabulary.printed_bytes(skip_special_tokens=True))
        for text, token in hidden.items():
            printed[token] = marks[text].encode()
        spelling = Spelling(
            _OPENS if plain.opens in hidden else plain.opens,
            _CLOSES if plain.closes in hidden else plain.closes,
            plain.bare,
            plain.separator,
            plain.named,
            frozenset(marks[text] for text in hidden),
        )
        return cls(found, shows, spelling, printed, ids)

    def reader(
        self,
        tools: Tools,
        mint: Callable[[int], str],
        *,
        skip_special_tokens: bool,
        shaped: bool = False,
    ) -> Reader:
        """`shaped`: a grammar makes the answer, whether it must call or may (`forced`)."""
        made = Made.EITHER if shaped else Made.FREELY
        if tools.choosing is Choosing.REQUIRED:
            made = Made.CALLS
        return Reader(
            self.spelling if skip_special_tokens else self.plain,
            [tool.name for tool in tools.callable],
            mint,
            parallel=not tools.single,
            made=made,
        )
