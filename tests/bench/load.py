"""Send completions at a fixed concurrency and time what comes back.

Closed loop: as many streams as asked, each taking the next prompt when it is done, until all are
sent; so many requests, so much time, then it ends by itself.  Prompts are seeded random token ids
or, for a server that refuses token arrays, seeded random words.  Every run has prompts of its own,
or a prefix cache would answer the second run of one seed.
Refuses to know: who serves, what a ledger is.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from tests.bench.figures import Answer, Row, row
from tests.bench.framing import WireError
from tests.bench.wire import Client, Reply

TOKEN_IDS = range(1_000, 40_000)  # ordinary tokens of a vocabulary above 40k; no special ids
WORDS = ("river", "stone", "quiet", "market", "letter", "window", "summer", "engine", "paper")
ERROR_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """What every request asks for.  `words`: the prompt is text, about a token a word.  `extra`
    fields go over those of the bench; not `exact`: an answer may end by itself before its length."""

    model: str
    input_tokens: int = 128
    output_tokens: int = 64
    words: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)
    exact: bool = True


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = ""
    type: str | None = None
    code: str | int | None = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def prompt(shape: Shape, seed: str) -> list[int] | str:
    """The same seed gives the same prompt on every machine."""
    rng = random.Random(seed)
    if shape.words:
        return " ".join(rng.choices(WORDS, k=shape.input_tokens))
    return rng.choices(TOKEN_IDS, k=shape.input_tokens)


def body(shape: Shape, seed: str) -> bytes:
    return msgspec.json.encode(
        {
            "model": shape.model,
            "prompt": prompt(shape, seed),
            "max_tokens": shape.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **shape.extra,
        }
    )


@dataclass(slots=True)
class Stream:
    """One completion being heard.  `texts` yields once an arrival of text; the rest is noted."""

    asked_tokens: int
    sent_s: float
    exact: bool = True
    reply: Reply | None = None
    first_s: float | None = None
    last_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    usage: _Usage | None = None
    finish: str | None = None
    request_id: str | None = None
    error: str | None = None
    retryable: bool = False  # the server said so, explicitly
    done: bool = False

    async def texts(self) -> AsyncGenerator[str, None]:
        assert self.reply is not None
        async with aclosing(self.reply.events()) as events:
            async for event in events:
                if event.data is None:
                    continue
                if event.data == b"[DONE]":
                    self.done = True
                    continue
                chunk = _CHUNK.decode(event.data)
                self.request_id = self.request_id or chunk.id
                self.usage = chunk.usage or self.usage
                if chunk.error is not None:
                    self.error = f"event: {chunk.error.code or chunk.error.type}"
                for choice in chunk.choices:
                    self.finish = choice.finish_reason or self.finish
                    if choice.text:
                        self._arrived(time.perf_counter())
                        yield choice.text

    def _arrived(self, now_s: float) -> None:
        if self.last_s is None:
            self.first_s = now_s
        else:
            self.gaps_s.append(now_s - self.last_s)
        self.last_s = now_s

    def answer(self, ended_s: float) -> Answer:
        error = self.error
        if not self.exact and self.finish == "stop" and self.usage is not None:
            self.asked_tokens = min(self.asked_tokens, self.usage.completion_tokens)
        if error is None and not self.done:
            error = "cut: no [DONE]"
        elif error is None and self.usage is None:
            error = "no usage in the stream"
        elif error is None and self.usage and self.usage.completion_tokens != self.asked_tokens:
            error = f"short: {self.usage.completion_tokens} of {self.asked_tokens} tokens"
        return Answer(
            asked_tokens=self.asked_tokens,
            sent_s=self.sent_s,
            ended_s=ended_s,
            first_s=self.first_s,
            gaps_s=tuple(self.gaps_s),
            status=None if self.reply is None else self.reply.status,
            input_tokens=self.usage.prompt_tokens if self.usage else 0,
            output_tokens=self.usage.completion_tokens if self.usage else 0,
            finish=self.finish,
            error=error,
            request_id=self.request_id,
        )


@asynccontextmanager
async def opened(client: Client, shape: Shape, seed: str) -> AsyncIterator[Stream]:
    """A stream whose head has arrived.  A refusal has `reply.status` ≠ 200 and `error` set."""
    stream = Stream(shape.output_tokens, time.perf_counter(), exact=shape.exact)
    async with client.request("POST", "/completions", body(shape, seed)) as reply:
        stream.reply = reply
        stream.request_id = reply.headers.get("x-request-id")
        if reply.status != 200:
            stream.error = f"{reply.status} {_error_code(await reply.read())}"
        yield stream


def _error_code(document: bytes) -> str:
    try:
        error = msgspec.json.decode(document, type=_Chunk).error
    except msgspec.DecodeError:
        error = None
    if error is None:
        return document[:ERROR_CHARS_MAX].decode("utf-8", "replace")
    return f"{error.code or error.type}: {error.message[:ERROR_CHARS_MAX]}"


async def ask(client: Client, shape: Shape, seed: str) -> Answer:
    """One completion to its end.  Never raises for what the server did: that is an `error`."""
    sent_s = time.perf_counter()
    stream = Stream(asked_tokens=shape.output_tokens, sent_s=sent_s)
    try:
        async with opened(client, shape, seed) as stream:
            if stream.error is None:
                async for _ in stream.texts():
                    pass
    except (OSError, WireError, TimeoutError, msgspec.DecodeError) as error:
        stream.error = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
    return stream.answer(time.perf_counter())


async def closed_loop(
    clients: Sequence[Client],
    shape: Shape,
    *,
    concurrency: int,
    requests: int,
    seed: str,
    deadline_s: float,
) -> list[Answer]:
    """`requests` completions, `concurrency` at a time.  Stream k speaks as clients[k % n], so that
    the load can be spread over several tokens.  TimeoutError past `deadline_s`."""
    assert clients
    assert 0 < concurrency <= requests
    todo = iter(range(requests))
    answers: list[Answer] = []

    async def one_stream(client: Client) -> None:
        for number in todo:
            answer = await ask(client, shape, f"{seed}/{number}")
            answers.append(answer)

    async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
        for k in range(concurrency):
            group.create_task(one_stream(clients[k % len(clients)]))
    return answers


async def measure(
    clients: Sequence[Client],
    shape: Shape,
    *,
    concurrency: int,
    requests: int,
    seed: str,
    deadline_s: float,
) -> tuple[Row, list[Answer]]:
    """One run and its row; the client's own CPU share is part of it."""
    cpu_s = time.process_time()
    answers = await closed_loop(
        clients,
        shape,
        concurrency=concurrency,
        requests=requests,
        seed=seed,
        deadline_s=deadline_s,
    )
    return row(answers, concurrency=concurrency, client_cpu_s=time.process_time() - cpu_s), answers
