"""From messages or a prompt string to the token ids of a prompt, and where each span came from.

Every segment is tokenised on its own, so no token straddles a boundary of provenance.
Refuses to know: the executor, limits.  Source: DESIGN.md, settled 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.errors import invalid
from gateway.text.masks import Origin
from gateway.text.templates import ChatMessage, ChatTemplate
from gateway.text.tokenizer import Vocabulary
from gateway.tools.asked import Tool
from policies.scope.labels import Label, join_all
from policies.scope.prefix import Supplied, Supplier

INLINE_CHARS_MAX = 2048
"""Longer texts leave the event loop; below this a thread costs more than the work."""


@dataclass(frozen=True, slots=True)
class Span:
    """`label`: of whom a registered text is for; None for the client's, and for the scaffold."""

    tokens: int
    origin: Origin
    source: str | None = None
    label: Label | None = None

    @property
    def supplier(self) -> Supplier:
        if self.origin is Origin.SCAFFOLD:
            return Supplier.SCAFFOLD
        return Supplier.CLIENT if self.label is None else Supplier.REGISTERED


@dataclass(frozen=True, slots=True)
class Prompt:
    """`spans` cover `ids` in order.  Without `provenance` (the template changes what it is given, or
    the client's own values reached its scaffold) there is one span, whose label is the join of all:
    nothing is said of who wrote what."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    provenance: bool = True

    @property
    def supplied(self) -> tuple[Supplied, ...]:
        """Who supplied the tokens, in order."""
        return tuple(
            Supplied(span.tokens, span.supplier if self.provenance else Supplier.MIXED, span.label)
            for span in self.spans
        )


def chat_prompt(
    vocabulary: Vocabulary,
    template: ChatTemplate | None,
    messages: Sequence[ChatMessage],
    *,
    now: datetime,
    extras: Mapping[str, Any] = {},
    tools: Sequence[Tool] = (),
) -> Prompt:
    """Raises ApiError 400.  `template` None: the model has none, and cannot chat."""
    if template is None:
        raise invalid(
            "This model has no chat template and cannot answer messages. Use /v1/completions.",
            param="model",
            code="no_chat_template",
        )
    rendered = template.render(messages, now=now, extras=extras, tools=tools)
    _must_fit(vocabulary, (segment.text for segment in rendered.segments), "messages")
    named = [piece.label for message in messages for piece in message.pieces]
    everything = join_all(label for label in named if label is not None) if any(named) else None
    ids: list[int] = []
    spans: list[Span] = []
    for segment in rendered.segments:
        if segment.origin is Origin.SCAFFOLD:
            found = vocabulary.encode_scaffold(segment.text, start=not spans)
        else:
            found = vocabulary.encode_content(segment.text)
        ids += found
        spans.append(Span(len(found), segment.origin, segment.source, segment.label))
    if not rendered.provenance or rendered.steered:
        whole = Span(len(ids), Origin.SCAFFOLD, label=everything)
        return Prompt(tuple(ids), (whole,), provenance=False)
    return Prompt(tuple(ids), tuple(spans))


def completion_prompt(
    vocabulary: Vocabulary, prompt: str | tuple[int, ...], *, add_bos: bool
) -> Prompt:
    """`add_bos` is the card's; an array of ids, which the schema has checked, is taken as it is.
    Raises ApiError 400 if nothing is left to continue."""
    if not isinstance(prompt, str):
        return Prompt(prompt, (Span(len(prompt), Origin.CONTENT, "prompt"),))
    _must_fit(vocabulary, (prompt,), "prompt")
    ids = vocabulary.encode_content(prompt, start=True)
    if not ids:
        raise invalid("The prompt has no text that this model can read.", param="prompt")
    spans = (Span(len(ids), Origin.CONTENT, "prompt"),)
    bos = vocabulary.bos_token_id
    if add_bos and bos is not None:
        return Prompt((bos, *ids), (Span(1, Origin.SCAFFOLD), *spans))
    return Prompt(tuple(ids), spans)


def _must_fit(vocabulary: Vocabulary, texts: Iterable[str], param: str) -> None:
    """Refuse what is many times too long before it costs seconds to tokenise.  What is only just
    too long is the limits' to refuse, with the exact count."""
    needed = sum(map(vocabulary.fewest_tokens, texts))
    if needed > vocabulary.context_tokens:
        raise invalid(
            f"This request needs more than {needed} tokens of context; the model has "
            f"{vocabulary.context_tokens}. Shorten the prompt.",
            param=param,
            code="context_length_exceeded",
        )


async def chat_prompt_async(
    vocabulary: Vocabulary,
    template: ChatTemplate | None,
    messages: Sequence[ChatMessage],
    *,
    now: datetime,
    extras: Mapping[str, Any] = {},
    tools: Sequence[Tool] = (),
) -> Prompt:
    """`chat_prompt`, off the event loop where it could hold it up."""
    size = sum(len(message.content) for message in messages) + 64 * len(messages)
    calls = tools or any(message.calls for message in messages)
    if size <= INLINE_CHARS_MAX and not calls and not (template is not None and template.busy):
        return chat_prompt(vocabulary, template, messages, now=now, extras=extras)
    return await asyncio.to_thread(
        chat_prompt, vocabulary, template, messages, now=now, extras=extras, tools=tools
    )


async def completion_prompt_async(
    vocabulary: Vocabulary, prompt: str | tuple[int, ...], *, add_bos: bool
) -> Prompt:
    """`completion_prompt`, off the event loop where it could hold it up."""
    if len(prompt) <= INLINE_CHARS_MAX:
        return completion_prompt(vocabulary, prompt, add_bos=add_bos)
    return await asyncio.to_thread(completion_prompt, vocabulary, prompt, add_bos=add_bos)
