"""What all endpoints for text have in common: from a request to the line, and back to HTTP.

    which model → tokens → lifecycle.serve → answer or events

`once` has found out who asks and read the body.

A family (`chat`, `completions`, `responses`, `messages`) brings its parsing and its wording and nothing else.
Source: API.md §1, §3.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.types import Receive, Send

from gateway import lifecycle, refusals, strict_json
from gateway.answer import Answer
from gateway.api.answers import Answered, Head, Usage
from gateway.api.endpoint import Arrival, Entry
from gateway.api.gathered import Gathered
from gateway.api.headers import rate_headers
from gateway.api.schema import Controls, model_of
from gateway.api.structure import named
from gateway.case import Case, Job
from gateway.end_users import spelt
from gateway.errors import ApiError, unavailable
from gateway.house import Deployment, House, Reading
from gateway.idempotency import retry_key
from gateway.kept import Basis
from gateway.provenance import Resolved
from gateway.references import References, resolved_for
from gateway.streaming import Events, Shape, respond, stream, until_disconnect
from gateway.telling import Delta, Telling, Voice
from gateway.text.prompts import Prompt
from gateway.text.reply import Reply
from gateway.text.stops import Automaton
from gateway.tools.asked import Tools
from gateway.tools.hearing import Hearing
from policies.classes import tier_used
from policies.facts import Principal

INLINE_BYTES_MAX = 64 * 1024
"""Larger bodies are parsed off the event loop."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed request and the tokens of its prompts.  `templated`: by the model's chat template.
    `resolved`: the registered texts in them.  `repeated`: what the family's answers repeat of the request."""

    controls: Controls
    prompts: tuple[Prompt, ...]
    templated: bool
    resolved: Resolved | None = None
    tools: Tools | None = None
    repeated: Mapping[str, Any] = field(default_factory=dict)


Resolve = Callable[[References], Awaitable[Resolved | None]]
"""What a request refers to, decided for whoever asks."""


@dataclass(frozen=True, slots=True)
class Speaking:
    """What a stream's words are made of: what was asked, and the file of its request as it fills."""

    head: Head
    reading: Reading
    asked: Asked
    case: Case


@dataclass(frozen=True, slots=True)
class Family:
    """What one endpoint has of its own.  `route` is for records; `prompt_param` is the field that
    holds the prompt; `ask(body, reading, wall_ms, resolve)` raises ApiError.  `shape` words a stream, `write` a whole
    answer, and `fault` is what a stream ends with that its reader may hear no more of.  `refusal` is what is kept of a refusal
    that is to be heard again."""

    route: str
    id_prefix: str
    prompt_param: str
    ask: Callable[[object, Reading, int, Resolve], Awaitable[Asked]]
    shape: Callable[[Speaking], Shape]
    write: Callable[[Asked, Answered], bytes]
    fault: Callable[[ApiError], bytes]
    refusal: Callable[[ApiError, str], bytes] = lambda why, _: why.json()


@dataclass(frozen=True, slots=True)
class Generate:
    """A POST endpoint.  `draw_seed` gives a seed where the client named none."""

    house: House
    family: Family
    draw_seed: Callable[[], int]
    body_bytes_max: int = 4 * 1024 * 1024
    metered: bool = True
    rated: bool = True

    def open(self) -> None:
        if self.house.draining():
            raise unavailable("This server is shutting down. Try again.", code="draining")

    async def serve(self, entry: Entry, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self._serve(entry, send))

    def check(self, entry: Entry, basis: Basis) -> None:
        if basis.model is not None:
            lifecycle.usable(self.house, entry.who, basis.model)

    @asynccontextmanager
    async def _line(
        self, who: Principal, job: Job, case: Case, asked: Asked
    ) -> AsyncIterator[Answer]:
        try:
            async with lifecycle.serve(self.house, who, job, case) as answer:
                yield answer
        except ApiError as why:
            self._blame(why, asked)
            raise

    def _blame(self, why: ApiError, asked: Asked) -> None:
        """Name the field that the client wrote: a policy calls every prompt `messages`, counts prompts among
        the choices and knows one name for the longest output."""
        controls = asked.controls
        several = len(asked.prompts) > 1 and controls.n == 1
        fields = {
            "messages": self.family.prompt_param,
            "n": self.family.prompt_param if several else "n",
            "max_tokens": controls.max_tokens_field,
        }
        why.param = None if why.param is None else fields.get(why.param, why.param)
        named(why, controls.structure)

    def _told(self, arrived: Arrival, who: Principal) -> AbstractAsyncContextManager[None]:
        """Around what comes before the line, which records for itself."""
        return refusals.told(self.house, who, arrived.request_id, self.family.route)

    async def _serve(self, entry: Entry, send: Send) -> None:
        house, who, arrived = self.house, entry.who, entry.arrived
        entry.doing.fault, entry.doing.refusal = self.family.fault, self.family.refusal
        async with self._told(arrived, who):
            body = await parsed(entry.body)
            deployment = lifecycle.usable(house, who, model_of(body))
            reading = deployment.reading()
            resolve = partial(resolved_for, house, who, arrived.request_id)
            asked = await self.family.ask(body, reading, arrived.wall_ms, resolve)
            service_class = lifecycle.class_for(house, who, asked.controls.service_tier)
        controls = asked.controls
        named_user = controls.end_user.named
        job = replace(
            _job(self.family.route, deployment, reading, asked, self.draw_seed(), service_class),
            retry_key=retry_key(house.retry_key, who, self.family.route, entry.key),
            claim=entry.doing.claim,
            scoping=house.caches.scoping(
                who.tenant or "",
                reading.card,
                tuple(prompt.supplied for prompt in asked.prompts),
                controls.end_user,
                templated=asked.templated,
                expires_ns=None if asked.resolved is None else asked.resolved.expires_ns,
            ),
            end_user=None if named_user is None else house.pseudonym(spelt(who, named_user)),
            metadata=controls.metadata,
        )
        case = Case(
            *(arrived.request_id, who, job, arrived.wall_ms, arrived.monotonic_ns),
            trace_id=arrived.trace_id,
        )
        entry.doing.basis.model, entry.doing.basis.reads = job.model, job.reads
        head = Head(
            id=self.family.id_prefix + arrived.request_id.removeprefix("req_"),
            created_s=arrived.wall_ms // 1000,
            model=deployment.name,
            fingerprint=reading.fingerprint,
            service_tier=_tier(house, controls, service_class),
        )
        voices: list[Voice] = []  # only who is admitted gets any: they may be many and large

        def tell(answer: Answer) -> Telling:
            voices.extend(_voices(reading, asked, job, arrived.request_id))
            return Telling(answer, voices, case, house.clock.monotonic_ns)

        line = self._line(who, job, case, asked)
        try:
            if controls.stream:
                await stream(
                    Events(send, lambda: tuple(_pairs(rate_headers(case.headroom)))),
                    line,
                    tell,
                    self.family.shape(Speaking(head, reading, asked, case)),
                    case,
                    keepalive_ms=house.timings.keepalive_ms,
                    status_at_once=controls.x_status,
                )
                return
            choices = [Gathered(controls.logprobs) for _ in range(job.choices)]
            async with line as answer:
                telling = tell(answer)
                while (told := await telling.next()) is not None:
                    if isinstance(told, Delta):
                        choices[told.index].add(told)
                case.delivered_tokens = sum(voice.tokens for voice in voices)
        except ApiError as why:
            why.headers = {**rate_headers(case.headroom), **why.headers}
            raise
        finally:
            entry.doing.spent, entry.doing.cut = case.spent(), case.outcome != "completed"
        answered = Answered(
            head,
            tuple(
                each.choice(i, case.finish_reasons[i], case.stopped_by.get(i))
                for i, each in enumerate(choices)
            ),
            usage_of(case),
            reading.vocabulary,
            x_limit_of(case),
        )
        data = self.family.write(asked, answered)
        took_ms = (house.clock.monotonic_ns() - arrived.monotonic_ns) // 1_000_000
        headers = rate_headers(case.headroom) | {"openai-processing-ms": str(took_ms)}
        await respond(send, 200, data, headers)


async def parsed(body: bytes) -> object:
    """Raises ApiError 400."""
    if len(body) <= INLINE_BYTES_MAX:
        return strict_json.loads(body)
    return await asyncio.to_thread(strict_json.loads, body)


def _job(
    route: str,
    deployment: Deployment,
    reading: Reading,
    asked: Asked,
    drawn_seed: int,
    service_class: str,
) -> Job:
    controls = asked.controls
    return Job(
        route=route,
        model=deployment.name,
        prompts=tuple(prompt.ids for prompt in asked.prompts),
        samplings=tuple(controls.sampling_for(i, drawn_seed) for i in range(controls.n)),
        max_output_tokens=controls.max_tokens,
        min_tokens=controls.min_tokens,
        stop_token_ids=controls.stop_ids(reading.card),
        grammar=None if controls.structure is None else controls.structure.grammar,
        service_class=service_class,
        reads=None if asked.resolved is None else asked.resolved.decision.label,
    )


def _tier(house: House, controls: Controls, service_class: str) -> str | None:
    """The tier that is used, where one was wished for, as OpenAI answers."""
    if controls.service_tier is None:
        return None
    return tier_used(service_class, house.classes.named).value


def _voices(reading: Reading, asked: Asked, job: Job, request_id: str) -> list[Voice]:
    controls, tools = asked.controls, asked.tools
    stops = Automaton(controls.stops)
    style = None if tools is None or not tools.callable else reading.style
    skip = controls.skip_special_tokens
    printed = style.printed if style is not None and skip else None

    def hearing(index: int) -> Hearing | None:
        if style is None or tools is None:
            return None
        mint = f"call_{request_id.removeprefix('req_')}_{index}_{{}}".format
        shaped = controls.structure is not None
        reader = style.reader(tools, mint, skip_special_tokens=skip, shaped=shaped)
        return Hearing(reader, logprobs=controls.logprobs)

    return [
        Voice(
            index,
            Reply(
                reading.vocabulary,
                stops=stops,
                stop_ids=frozenset(job.stop_token_ids),
                logprobs=controls.logprobs,
                skip_special_tokens=skip,
                printed=printed,
            ),
            by_token=bool(controls.stops) or (tools is not None and tools.single),
            hearing=hearing(index),
        )
        for index in range(job.choices)
    ]


def usage_of(case: Case) -> Usage:
    meters = case.meters()
    return Usage(
        prompt=meters.input + meters.cached_input,
        completion=meters.output,
        cached=meters.cached_input,
    )


def x_limit_of(case: Case) -> str | None:
    limited = any(case.limited_by_budget(index) for index in case.ended)
    return "token_budget" if limited else None


def _pairs(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
