"""Tokens without an answer: how many a request has, which they are, and the text of some.

    POST /v1/messages/count_tokens   Anthropic's form   →  {"input_tokens": 7}
    POST /v1/tokenize                a text, or messages as for a chat  →  {"count", "max_model_len", "tokens", …}
    POST /v1/detokenize              {"model", "tokens"}  →  {"prompt"}

They are read as the same request would be for an answer, so the number is the one that it is billed; and they draw as
many from the rate of input tokens, and a request from that of requests, so that nobody reads texts here for nothing.
Nothing is held of any budget.  What is registered is counted and never told: its reader may not be who may have its
text back.

Refuses to know: executors, answers.  Source: DESIGN.md, settled 9; vLLM's and Anthropic's APIs of these names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import Receive, Send

from gateway import lifecycle, refusals
from gateway.api.chat import templated
from gateway.api.endpoint import Entry
from gateway.api.generate import Resolve, parsed
from gateway.api.headers import rate_headers
from gateway.api.messages.schema import parse_count
from gateway.api.refused import unsupported
from gateway.api.schema import model_of, object_of
from gateway.api.schema_chat import parse_chat
from gateway.api.schema_counting import parse_detokenize, parse_strings, parse_tokenize
from gateway.api.wire import json_bytes
from gateway.errors import ApiError, unavailable
from gateway.house import House, Reading
from gateway.kept import Basis
from gateway.references import resolved_for
from gateway.refusals import audit_down
from gateway.streaming import respond
from gateway.text.prompts import INLINE_CHARS_MAX, completion_prompt_async
from gateway.text.tokenizer import Vocabulary
from gateway.unbroken import unbroken
from gateway.worded import anthropic_error
from policies.facts import Principal
from policies.scope.labels import Label
from security.audit import AuditEvent, AuditUnavailable
from tenants.scopes import dimensions, scope_limits
from tenants.tempo import Headroom, TempoAsk


@dataclass(frozen=True, slots=True)
class Counted:
    """`reads`: the registered texts among them."""

    tokens: int
    answer: dict[str, Any]
    reads: Label | None = None


Count = Callable[[object, Reading, int, Resolve], Awaitable[Counted]]
"""Of a body, what it comes to.  Raises ApiError 400, and what `resolve` raises."""


async def count_messages(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Counted:
    job = parse_count(body, vocab_size=reading.card.vocab_size)
    asked = await templated(job, reading, wall_ms, resolve)
    tokens = len(asked.prompts[0].ids)
    reads = None if asked.resolved is None else asked.resolved.decision.label
    return Counted(tokens, {"input_tokens": tokens}, reads)


async def tokenize(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Counted:
    vocabulary, card = reading.vocabulary, reading.card
    strings = parse_strings(body)
    if "messages" in object_of(body):
        job = parse_chat(body, vocab_size=card.vocab_size)
        if job.references:
            raise unsupported(
                "messages: registered documents and templates are not written out here. Leave them out; "
                "/v1/messages/count_tokens counts documents.",
                param="messages",
            )
        ids = (await templated(job, reading, wall_ms, resolve)).prompts[0].ids
    else:
        text, special = parse_tokenize(body)
        ids = await _of_text(reading, text, add_bos=card.add_bos and special)
    answer = {
        "count": len(ids),
        "max_model_len": card.context_tokens,
        "tokens": ids,
        "token_strs": await _aside(ids, partial(_strings, vocabulary, ids)) if strings else None,
    }
    return Counted(len(ids), answer)


async def _of_text(reading: Reading, text: str, *, add_bos: bool) -> tuple[int, ...]:
    """As a completion reads it, which nothing can begin with no text."""
    bos = reading.vocabulary.bos_token_id
    if not text:
        return (bos,) if add_bos and bos is not None else ()
    return (await completion_prompt_async(reading.vocabulary, text, add_bos=add_bos)).ids


async def detokenize(body: object, reading: Reading, wall_ms: int, resolve: Resolve) -> Counted:
    """Special tokens are written out: nothing is left of a list that would show what is in it."""
    vocabulary, card = reading.vocabulary, reading.card
    ids = parse_detokenize(body, vocab_size=card.vocab_size, most=card.context_tokens)
    text = await _aside(ids, partial(vocabulary.decode, ids, skip_special_tokens=False))
    return Counted(len(ids), {"prompt": text})


def _strings(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    return [vocabulary.token_text(token) for token in ids]


async def _aside(ids: Sequence[int], work: Callable[[], Any]) -> Any:
    """Off the event loop where it could hold it up."""
    return work() if len(ids) <= INLINE_CHARS_MAX else await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class Counting:
    """One of the endpoints.  `refusal` is what is kept of a refusal that is to be heard again."""

    house: House
    route: str
    count: Count
    refusal: Callable[[ApiError, str], bytes] = lambda why, _: why.json()
    body_bytes_max: int = 4 * 1024 * 1024
    metered: bool = False
    rated: bool = True

    def open(self) -> None:
        if self.house.draining():
            raise unavailable("This server is shutting down. Try again.", code="draining")

    def check(self, entry: Entry, basis: Basis) -> None:
        if basis.model is not None:
            lifecycle.usable(self.house, entry.who, basis.model)

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        house, who, arrived = self.house, entry.who, entry.arrived
        entry.doing.refusal = self.refusal
        async with refusals.told(house, who, arrived.request_id, self.route):
            body = await parsed(entry.body)
            deployment = lifecycle.usable(house, who, model_of(body))
            entry.doing.basis.model = deployment.name
            resolve = partial(resolved_for, house, who, arrived.request_id)
            counted = await self.count(body, deployment.reading(), arrived.wall_ms, resolve)
            entry.doing.basis.reads = counted.reads
            headroom = await self._draw(who, arrived.request_id, deployment.name, counted.tokens)
        await self._record(entry, deployment.name, counted.tokens)
        await respond(send, 200, json_bytes(counted.answer), rate_headers(headroom))

    async def _draw(self, who: Principal, request_id: str, model: str, tokens: int) -> Headroom:
        """What the same prompt would for an answer, and no place among those that run, since it is over."""
        house = self.house
        standing = lifecycle.standing_of(house, who)
        scopes = scope_limits(standing, dimensions(who, model, None))
        ask = TempoAsk(request_id, standing.tenant, scopes, input_tokens=tokens, output_tokens=0)
        headroom = lifecycle.allowed(await house.tempo.admit(ask))
        await unbroken(house.tempo.release(request_id, 0))
        return headroom

    async def _record(self, entry: Entry, model: str, tokens: int) -> None:
        """Before anything of it is heard."""
        house, who, request_id = self.house, entry.who, entry.arrived.request_id
        house.log(
            "request.counted",
            request_id=request_id,
            tenant=who.tenant,
            route=self.route,
            model=model,
            input_tokens=tokens,
        )
        event = AuditEvent(
            kind="request.counted",
            request_id=request_id,
            tenant=who.tenant,
            subject=house.names.person(who.tenant, who.issuer, who.user),
            credential_id=who.credential.id,
            route=self.route,
            model=model,
            outcome="completed",
            input_tokens=tokens,
        )
        try:
            await unbroken(house.audit.append(event))
        except AuditUnavailable as down:
            raise audit_down() from down


def endpoints(house: House) -> tuple[Counting, ...]:
    return (
        Counting(house, "/v1/messages/count_tokens", count_messages, anthropic_error),
        Counting(house, "/v1/tokenize", tokenize),
        Counting(house, "/v1/detokenize", detokenize),
    )
