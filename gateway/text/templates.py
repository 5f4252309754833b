"""A model's chat template: messages to the text that the model was trained to read, with provenance.

`render` gives segments.  SCAFFOLD is the template's own text, the only text in which special tokens
mean anything; CONTENT is what somebody wrote: the client (tools, calls and their results too), or who registered
it (then it has a label).
To tell them apart the template is rendered twice: once with an unguessable word in place of each
string (`text.masks`), and once with the real strings.  The
first rendering, split at the words, gives the segments; the second is the check: put together, the
segments must read the same.  A template that only trims, or makes JSON of it, passes.  One that transforms or inspects
what was written does
not, and is answered in one piece with `provenance=False`; then text that could become a special
token is refused.

Refuses to know: tokens, except which texts are special; what a label means; HTTP.  Source: DESIGN.md, settled 2 and 4;
transformers' chat template conventions.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jinja2 import meta

from executor.contract import ModelCard
from gateway.errors import ApiError, invalid
from gateway.quoting import fit
from gateway.text.masks import Mask, Masks, Origin, Segment, bare
from gateway.text.sandbox import BoundedEnvironment, Bounds, TemplateFault, TemplateRefusal
from gateway.text.tokenizer import Vocabulary
from gateway.tools.asked import Tool
from gateway.tools.calls import ToolCall
from gateway.tools.formats import Format, Style
from gateway.tools.shown import shown_calls, shown_tools
from policies.scope.labels import Label

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
REASON_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Rendered:
    """`steered`: a value of the client's own reached the scaffold."""

    segments: tuple[Segment, ...]
    provenance: bool
    steered: bool = False

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message that somebody else than the client may have supplied."""

    text: str
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """`content` is the text of all parts.  `role` is one of system, developer, user, assistant, tool.
    `pieces`, where there are any, are the content in the order in which it was put together.  `calls` are an assistant's,
    and `call_id` is of the call that a tool's message answers."""

    role: str
    content: str
    name: str | None = None
    pieces: tuple[Piece, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None

    def __post_init__(self) -> None:
        assert not self.pieces or "".join(piece.text for piece in self.pieces) == self.content

    @classmethod
    def of(cls, role: str, pieces: Sequence[Piece]) -> ChatMessage:
        return cls(role, "".join(piece.text for piece in pieces), pieces=tuple(pieces))


class ChatTemplate:
    """One model's.  Safe between threads, which take turns."""

    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary,
        *,
        bounds: Bounds = Bounds(),  # noqa: B008 — frozen
        mint: Callable[[], str] = lambda: secrets.token_hex(16),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compile and try it.  Raises TemplateFault, a sentence for the operator."""
        self._source = source
        self._vocabulary = vocabulary
        self._environment = BoundedEnvironment(bounds, clock)
        self._template = self._environment.prepare(source)
        self._mint = mint
        self._lock = threading.Lock()
        self._names = meta.find_undeclared_variables(self._environment.parse(source))
        self._developer = "developer" in source
        eos = next(iter(vocabulary.eos_token_ids), None)  # the tokenizer's own comes first
        self._fixed = {
            "bos_token": vocabulary.special_text(vocabulary.bos_token_id),
            "eos_token": vocabulary.special_text(eos),
            "tools": None,
            "documents": None,
        }
        self._parts = False
        self._parts = self._wants_parts()

    @classmethod
    def compile(cls, card: ModelCard, vocabulary: Vocabulary) -> ChatTemplate | None:
        """None if the model has no chat template.  Raises TemplateFault."""
        return None if card.chat_template is None else cls(card.chat_template, vocabulary)

    def style(self, said: Format | None = None) -> Style | None:
        """How the model calls tools, None where that is not known.  `said`: it is known from elsewhere."""
        return Style.of(self._source, self._vocabulary, shows=self.uses("tools"), said=said)

    @property
    def busy(self) -> bool:
        """Another thread renders now, and this one would wait."""
        return self._lock.locked()

    def uses(self, name: str) -> bool:
        """Whether the template reads a variable of this name."""
        return name in self._names

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        now: datetime,
        add_generation_prompt: bool = True,
        extras: Mapping[str, Any] = {},
        tools: Sequence[Tool] = (),
    ) -> Rendered:
        """`extras` and `tools` that the template does not read are ignored.  Raises ApiError 400 where the template
        refuses the conversation, cannot render it within its bounds, or (without provenance) the
        conversation holds the text of a special token."""
        extras = {name: value for name, value in extras.items() if name in self._names}
        for name, value in extras.items():
            if isinstance(value, str) and self._vocabulary.mentions_special(value):
                raise invalid(
                    f"chat_template_kwargs.{name} contains a control token of this model.",
                    param="chat_template_kwargs",
                )
        values = {**extras, **self._fixed, "add_generation_prompt": add_generation_prompt}
        masks = Masks(self._mint())
        masked = values | self._values(messages, tools, masks.mask)
        written = masks.written()
        size = sum(map(len, written))
        try:
            outline = self._run(masked, size, now, masks)
        except TemplateRefusal as refusal:
            said = fit(masks.blotted(str(refusal)), REASON_CHARS_MAX)
            raise invalid(
                f"The model's chat template refuses this conversation: {said or 'no reason given'}",
                param="messages",
                code="template_refused",
            ) from refusal
        except TemplateFault as fault:
            raise _unrenderable() from fault
        segments = masks.split(outline)
        rendered = Rendered(segments, provenance=True, steered=bool(extras))
        try:
            actual = self._run(values | self._values(messages, tools, bare), size, now)
        except (TemplateFault, TemplateRefusal) as fault:
            raise _unrenderable() from fault
        if rendered.text == actual:
            return rendered
        return self._without_provenance(actual, written, segments)

    def _without_provenance(
        self, actual: str, written: Sequence[str], segments: Sequence[Segment]
    ) -> Rendered:
        """The whole as scaffold, if the special tokens in it are those of the scaffold alone."""
        scaffold = [segment.text for segment in segments if segment.origin is Origin.SCAFFOLD]
        # The template may also have made a control token out of innocent pieces: compare.
        if any(map(self._vocabulary.mentions_special, written)) or self._specials(
            [actual]
        ) != self._specials(scaffold):
            raise invalid(
                "This model's chat template rewrites what was written, so a control token of the "
                "model cannot be told from one of the template. Remove control tokens such as "
                "<|im_end|> from the messages and tools.",
                param="messages",
                code="control_token",
            )
        return Rendered((Segment(actual, Origin.SCAFFOLD),), provenance=False)

    def _specials(self, texts: Sequence[str]) -> list[int]:
        forbidden = self._vocabulary.forbidden_ids
        encode = self._vocabulary.encode_scaffold
        return [token for text in texts for token in encode(text) if token in forbidden]

    def _values(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], mask: Mask
    ) -> dict[str, Any]:
        more = shown_calls([(message.calls, message.call_id) for message in messages], mask)
        values: dict[str, Any] = {
            "messages": [
                self._plain(message, f"messages[{place}]", more[place], mask)
                for place, message in enumerate(messages)
            ]
        }
        return values | {"tools": shown_tools(tools, mask)} if tools else values

    def _plain(
        self, message: ChatMessage, at: str, more: Mapping[str, Any], mask: Mask
    ) -> dict[str, Any]:
        role = message.role
        if role == "developer" and not self._developer:
            role = "system"
        content: Any = "".join(
            mask(piece.text, f"{at}.content", piece.label)
            for piece in message.pieces or (Piece(message.content),)
        )
        if self._parts:
            content = [{"type": "text", "text": content}]
        plain = {"role": role, "content": content, **more}
        if message.name is not None:
            plain["name"] = mask(message.name, f"{at}.name", None)
        return plain

    def _run(
        self, values: Mapping[str, Any], size: int, now: datetime, masks: Masks | None = None
    ) -> str:
        with self._lock:
            return self._environment.run(
                self._template, values, input_chars=size, now=now, masks=masks
            )

    def _wants_parts(self) -> bool:
        """Try the template on the least conversation, with content as text or as a list of parts:
        what the message says must show.  Raises TemplateFault if neither form does."""
        asks = [[ChatMessage("user", self._mint())] for _ in range(2)]
        values = {**self._fixed, "add_generation_prompt": True}
        seen: list[str] = []
        for self._parts in (False, True):
            try:
                one, other = (
                    self._run(values | self._values(ask, (), bare), 0, _LONG_AGO) for ask in asks
                )
                if one != other:
                    return self._parts
            except (TemplateFault, TemplateRefusal) as fault:
                seen.append(str(fault))
        raise TemplateFault(
            "The model's chat template does not render a plain user message: "
            + fit(" / ".join(seen) or "the message is missing from its output", REASON_CHARS_MAX)
        )


def _unrenderable() -> ApiError:
    return invalid(
        "These messages cannot be rendered with the model's chat template. It may ask for another "
        "order of roles: usually an optional system message first, then user and assistant in turn.",
        param="messages",
        code="template_failed",
    )
