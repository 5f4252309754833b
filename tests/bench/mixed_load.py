"""What a soak asks of a server: all lengths and temperatures, shapes, and clients that hang up.

Refuses to know: how long, what is measured, whether it holds.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tests.bench.load import Shape, ask
from tests.bench.scenarios import hang_up
from tests.bench.wire import Client

WIDEST_S_MAX = 300.0
SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Mix:
    """What is asked.  `words`: prompts are text, for a model whose vocabulary is small."""

    streams: int = 12
    input_max: int = 384
    output_max: int = 96
    abort_share: float = 0.2
    structured_share: float = 0.15
    words: bool = False
    probe_streams: int = 8
    probe_input: int = 32
    probe_output: int = 24


USUAL = Mix()


@dataclass(slots=True)
class Tally:
    """What was asked so far, and what went wrong."""

    requests: int = 0
    hung_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Ends:
    at_s: float
    clock_s: Callable[[], float]

    @property
    def come(self) -> bool:
        return self.clock_s() >= self.at_s


async def has_structure(client: Client, model: str, mix: Mix, seed: int) -> bool:
    """Whether the server takes `response_format`."""
    shape = _structured(Shape(model, 8, 48, words=mix.words))
    return (await ask(client, shape, f"soak/{seed}/structure")).status == 200


def _structured(shape: Shape) -> Shape:
    form = {"name": "soak", "schema": SCHEMA, "strict": True}
    asked = {"response_format": {"type": "json_schema", "json_schema": form}, "ignore_eos": False}
    return replace(shape, extra={**shape.extra, **asked}, exact=False)


async def widest(client: Client, model: str, mix: Mix, seed: int) -> None:
    """All streams at once at full length, so that all memory they can need was touched."""
    shape = Shape(model, mix.input_max, mix.output_max, words=mix.words)
    asks = [ask(client, shape, f"soak/{seed}/widest/{each}") for each in range(mix.streams)]
    async with asyncio.timeout(WIDEST_S_MAX):
        await asyncio.gather(*asks)


async def mixed(
    client: Client,
    model: str,
    mix: Mix,
    name: str,
    rng: random.Random,
    tally: Tally,
    ends: Ends,
    *,
    structured: bool,
) -> None:
    """`streams` workers, each with one request after the other until the window ends."""

    async def worker() -> None:
        while not ends.come:
            seed = f"{name}/{tally.requests}"
            tally.requests += 1
            shape, lot = _drawn(model, mix, rng), rng.random()
            if lot < mix.abort_share:
                tally.hung_up += 1
                await hang_up(client, shape, seed, after=rng.randrange(-1, 16), rng=rng)
                continue
            if structured and lot < mix.abort_share + mix.structured_share:
                shape = _structured(shape)
            answer = await ask(client, shape, seed)
            if answer.error is not None:
                tally.errors[answer.error] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(mix.streams):
            group.create_task(worker())


def _drawn(model: str, mix: Mix, rng: random.Random) -> Shape:
    """Lengths by their logarithm: many short ones, some long."""

    def length(most: int) -> int:
        return max(1, round(math.exp(rng.uniform(0, math.log(most)))))

    temperature = rng.choice((0.0, 0.0, 0.7, 1.0))
    extra: dict[str, object] = {"temperature": temperature, "seed": rng.randrange(2**31)}
    if temperature:
        extra["top_p"] = rng.choice((1.0, 0.9))
    return Shape(model, length(mix.input_max), length(mix.output_max), words=mix.words, extra=extra)
