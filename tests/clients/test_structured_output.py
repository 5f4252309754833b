"""Answers of a given shape from the real model, over HTTP, as clients ask for them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.bench.admin import until_idle
from tests.bench.server import Server, Site
from tests.models import default_model_path

pytestmark = pytest.mark.slow

ASK: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Invent a person who lives near a canal lock. Answer in JSON."}
]
ROOM = 400


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Server.prepare(model_path=str(default_model_path()), threads=2) as running:
        yield running.site


@pytest.fixture
def ai(site: Site) -> Iterator[OpenAI]:
    with OpenAI(api_key=site.tokens["acme/alice"], base_url=site.base_url, max_retries=0) as client:
        yield client


def form(schema: object, **more: object) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


def obj(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


Check = Callable[[Any], bool]
SHORT = {"type": "string", "maxLength": 20}
SCHEMAS: dict[str, tuple[dict[str, object], Check]] = {
    "strings": (
        obj(name=SHORT, town=SHORT),
        lambda v: list(v) == ["name", "town"] and all(len(one) <= 20 for one in v.values()),
    ),
    "enum": (
        obj(colour={"enum": ["red", "green", 'dark "blue"', None, 3]}),
        lambda v: v["colour"] in ["red", "green", 'dark "blue"', None, 3],
    ),
    "integers": (
        obj(age={"type": "integer", "minimum": 18, "maximum": 99}),
        lambda v: type(v["age"]) is int and 18 <= v["age"] <= 99,
    ),
    "numbers": (
        obj(height={"type": "number", "minimum": 0.5, "exclusiveMaximum": 2.5}),
        lambda v: 0.5 <= v["height"] < 2.5,
    ),
    "nested arrays": (
        obj(
            grid={
                "type": "array",
                "items": {
                    "type": "array",
                    "items": {"type": "boolean"},
                    "minItems": 2,
                    "maxItems": 2,
                },
                "minItems": 2,
                "maxItems": 3,
            }
        ),
        lambda v: 2 <= len(v["grid"]) <= 3 and all(len(row) == 2 for row in v["grid"]),
    ),
    "a pattern with escapes": (
        obj(path={"type": "string", "pattern": r'^[a-z]{2}\\[a-z]{2}"\n[0-9]{2}$'}),
        lambda v: re.fullmatch(r'[a-z]{2}\\[a-z]{2}"\n[0-9]{2}', v["path"]) is not None,
    ),
    "one of two": (
        {"oneOf": [obj(kind={"const": "a"}, x={"type": "null"}), obj(kind={"const": "b"})]},
        lambda v: v in ({"kind": "a", "x": None}, {"kind": "b"}),
    ),
    "formats": (
        obj(born={"type": "string", "format": "date"}, id={"type": "string", "format": "uuid"}),
        lambda v: re.fullmatch(r"\d{4}-\d\d-\d\d", v["born"]) is not None and len(v["id"]) == 36,
    ),
    "references": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": obj(
                    name=SHORT,
                    child={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]},
                ),
                "leaf": obj(leaf={"type": "boolean"}),
            },
        },
        lambda v: v["child"] is None or type(v["child"]["leaf"]) is bool,
    ),
    "a tuple": (
        {
            "type": "array",
            "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}, {"const": "é😀"}],
            "items": False,
            "minItems": 2,
        },
        lambda v: len(v) == 2 and 0 <= v[0] <= 9 and v[1] == "é😀",
    ),
}


@pytest.mark.parametrize("temperature", (0.0, 2.0))
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_answer_is_of_the_schema(ai: OpenAI, site: Site, name: str, temperature: float) -> None:
    schema, right = SCHEMAS[name]
    answer = ai.chat.completions.create(
        model=site.model,
        messages=ASK,
        response_format=form(schema, strict=True),
        temperature=temperature,
        seed=5,
        max_tokens=ROOM,
    ).choices[0]
    assert answer.finish_reason == "stop"
    found = json.loads(answer.message.content or "")
    assert right(found), found


def test_an_object_is_an_object_and_cut_off_it_says_length(ai: OpenAI, site: Site) -> None:
    for seed in range(3):
        answer = ai.chat.completions.create(
            model=site.model,
            messages=ASK,
            response_format={"type": "json_object"},
            temperature=2.0 if seed else 0.0,
            seed=seed,
            max_tokens=80,
        ).choices[0]
        said = answer.message.content or ""
        assert said.startswith("{")
        assert re.search(r"\s{18,}", re.sub(r'"(\\.|[^"\\])*"?', "", said)) is None
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(said), dict)
        else:
            assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    (
        ({"regex": r"\d{3}-\d{2}"}, r"[0-9]{3}-[0-9]{2}"),
        ({"choice": ["green", "red"]}, "green|red"),
        ({"grammar": 'start: item ("," item)~2\nitem: "a" | "b"'}, "[ab],[ab],[ab]"),
        ({"json": {"enum": [1, 2]}}, "1|2"),
    ),
)
def test_the_extension_in_both_endpoints_streamed_or_not(
    ai: OpenAI, site: Site, outputs: dict[str, object], pattern: str
) -> None:
    extra = {"structured_outputs": outputs}
    chat = ai.chat.completions.create(
        model=site.model, messages=ASK, max_tokens=40, stream=True, extra_body=extra
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chat)
    assert re.fullmatch(pattern, said), said
    plain = ai.completions.create(model=site.model, prompt="x", max_tokens=40, extra_body=extra)
    assert re.fullmatch(pattern, plain.choices[0].text), plain.choices[0].text


class Boat(BaseModel):
    name: str = Field(max_length=20)
    colour: Literal["red", "blue"]
    crew: list[str] = Field(max_length=2)
    length_m: float | None


def test_pydantic_by_the_openai_client(ai: OpenAI, site: Site) -> None:
    answer = ai.chat.completions.parse(
        model=site.model,
        messages=[{"role": "user", "content": "Describe a boat as JSON."}],
        response_format=Boat,
        max_tokens=ROOM,
        seed=1,
    )
    boat = answer.choices[0].message.parsed
    assert isinstance(boat, Boat)
    assert boat.colour in {"red", "blue"}


def test_eight_different_schemas_hold_at_once(site: Site) -> None:
    async def one(ai: AsyncOpenAI, name: str) -> str:
        answer = await ai.chat.completions.create(
            model=site.model,
            messages=ASK,
            response_format=form(SCHEMAS[name][0]),
            seed=3,
            max_tokens=ROOM,
        )
        assert answer.choices[0].finish_reason == "stop"
        said = answer.choices[0].message.content or ""
        assert SCHEMAS[name][1](json.loads(said))
        return said

    async def run() -> None:
        names = list(SCHEMAS)[:8]
        async with AsyncOpenAI(
            api_key=site.tokens["acme/bob"], base_url=site.base_url, max_retries=0
        ) as ai:
            company = await asyncio.gather(*(one(ai, name) for name in names))
            assert len(company) == 8

    asyncio.run(run())


def many_properties() -> dict[str, object]:
    return {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(3000)},
    }


BAD: dict[str, tuple[Any, str]] = {
    "type": (form({"type": "hiccup"}), "hiccup"),
    "keyword": (form({"type": "array", "uniqueItems": True}), "uniqueItems"),
    "remote": (form({"$ref": "http://127.0.0.1:9/x"}), "nothing is ever fetched"),
    "circle": (form({"$ref": "#"}), "no answer"),
    "bomb": (form(many_properties()), "Simplify"),
    "depth": (form({"allOf": [{"not": {}}] * 3}), "not"),
}


@pytest.mark.parametrize("stream", (False, True))
@pytest.mark.parametrize("name", BAD)
def test_a_bad_schema_is_a_400_and_costs_nothing(
    ai: OpenAI, site: Site, name: str, *, stream: bool
) -> None:
    before = asyncio.run(site.admin.usage())
    asked, says = BAD[name]
    with pytest.raises(openai.BadRequestError) as caught:
        ai.chat.completions.create(
            model=site.model, messages=ASK, response_format=asked, stream=stream
        )
    assert says in caught.value.message
    assert caught.value.param == "response_format"
    after = asyncio.run(site.admin.usage()).since(before)
    assert (after.input_tokens, after.output_tokens, after.nano_usd) == (0, 0, 0)


def test_bombs_do_not_stop_the_neighbours(site: Site) -> None:
    """A stream of another tenant goes on token by token while one after another is refused.  Printed,
    not judged: the gaps with bombs beside it and without."""

    async def gaps_s(ai: AsyncOpenAI) -> list[float]:
        stream = await ai.chat.completions.create(
            model=site.model,
            messages=[{"role": "user", "content": "Count to a hundred."}],
            max_tokens=250,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        heard = [(time.monotonic(), chunk) async for chunk in stream]
        usage = heard[-1][1].usage
        assert usage is not None
        assert usage.completion_tokens == 250
        return [after - before for (before, _), (after, _) in pairwise(heard)]

    async def run() -> None:
        async with (
            AsyncOpenAI(api_key=site.tokens["globex/carol"], base_url=site.base_url) as carol,
            AsyncOpenAI(
                api_key=site.tokens["acme/alice"], base_url=site.base_url, max_retries=0
            ) as alice,
        ):
            quiet = await gaps_s(carol)
            streaming = asyncio.create_task(gaps_s(carol))
            refused = 0
            while not streaming.done():
                with pytest.raises(openai.BadRequestError):
                    await alice.chat.completions.create(
                        model=site.model, messages=ASK, response_format=form(many_properties())
                    )
                refused += 1
            loud = await streaming
            assert refused >= 1
            for name, gaps in (("alone", quiet), ("beside bombs", loud)):
                p99_s = sorted(gaps)[int(len(gaps) * 0.99)]
                print(f"{name}: median {median(gaps) * 1e3:.1f} ms, p99 {p99_s * 1e3:.1f} ms")

    asyncio.run(run())


def test_leaving_while_it_compiles_leaves_nothing(site: Site) -> None:
    async def run() -> None:
        async with AsyncOpenAI(
            api_key=site.tokens["acme/alice"], base_url=site.base_url, max_retries=0
        ) as ai:

            async def leave(after_s: float) -> None:
                with pytest.raises(openai.APITimeoutError):
                    await ai.chat.completions.create(
                        model=site.model,
                        messages=ASK,
                        response_format=form(many_properties()),
                        timeout=after_s,
                    )

            await asyncio.gather(*(leave(0.05 + n / 50) for n in range(6)))
        idle_s, left = await until_idle(site.admin, deadline_s=30)
        assert idle_s is not None, left

    asyncio.run(run())
