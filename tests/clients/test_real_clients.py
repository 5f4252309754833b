"""What only a model and its grammar can show, with every client: a call that must be, and an answer of a given shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.bench.server import Server, Site
from tests.clients.conftest import Clients
from tests.clients.driving import Ask
from tests.clients.matrix import DEVIATIONS, Cell
from tests.clients.test_every_client import PAIRS, answered, every
from tests.models import default_model_path

pytestmark = pytest.mark.slow

BERN = "How is the weather in Bern?"
SHAPE = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "description": "How it is there", "parameters": SHAPE}


def fits(told: Any) -> bool:
    return (
        set(told) == {"city", "sunny"}
        and told["city"] in {"Bern", "Basel"}
        and type(told["sunny"]) is bool
    )


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Server.prepare(model_path=str(default_model_path()), threads=2) as running:
        yield running.site


def ask(site: Site, **more: Any) -> Ask:
    return Ask(
        base_url=site.base_url,
        key=site.tokens["acme/alice"],
        model=site.model,
        messages=[{"role": "user", "content": BERN}],
        max_tokens=100,
        **more,
    )


@pytest.mark.covers("a model must call (`required`)")
@every
def test_a_call_that_must_be(site: Site, clients: Clients, api: str, client: str) -> None:
    deviates = Cell(api, "a model must call (`required`)", client) in DEVIATIONS
    must: Any = {"type": "function", "function": {"name": "weather"}} if deviates else "required"
    for stream in (False, True):
        asked = ask(site, api=api, stream=stream, tools=[TOOL], tool_choice=must)
        [call, *_] = answered(clients, client, asked).calls
        assert call.name == "weather"
        assert fits(call.read())


@pytest.mark.covers("a JSON schema")
@pytest.mark.parametrize(("api", "client"), PAIRS[:-1])
def test_an_answer_of_a_given_shape(site: Site, clients: Clients, api: str, client: str) -> None:
    for stream in (False, True):
        text = answered(clients, client, ask(site, api=api, stream=stream, schema=SHAPE)).text
        assert fits(msgspec.json.decode(text))
