"""The shape of an answer: what is read, what is refused here, and what the executor's refusal becomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor.contract import (
    GRAMMAR_BYTES_MAX,
    Cause,
    DeviceTime,
    Ended,
    Gauges,
    Grammar,
    GrammarKind,
    Listed,
    Overview,
    Purged,
    Quota,
    Revoked,
    Submit,
    Workload,
)
from executor.echo_card import echo_card
from executor.turn import MailboxTurn
from gateway.answer import fault
from gateway.api.schema_chat import parse_chat
from gateway.api.schema_completions import parse_completion
from gateway.api.structure import SCHEMA_DEPTH, Structure
from gateway.errors import ApiError
from tests.gateway.inhouse import Inhouse, inhouse

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}
TEXT = '{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}}'


def both(**fields: Any) -> list[Structure | None]:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    return [
        parse_chat(chat | fields, vocab_size=300).controls.structure,
        parse_completion(
            {"model": "m", "prompt": "hi"} | fields, vocab_size=300
        ).controls.structure,
    ]


def schema(given: object = SCHEMA, **fields: object) -> dict[str, Any]:
    asked = {"name": "answer", "schema": given} | fields
    return {"response_format": {"type": "json_schema", "json_schema": asked}}


def outputs(**fields: object) -> dict[str, Any]:
    return {"structured_outputs": fields}


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"not": found}
    return found


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    (
        ({"response_format": {"type": "json_object"}}, "json_object", "", "response_format"),
        (schema(), "json_schema", TEXT, "response_format"),
        (schema(strict=True, description="d"), "json_schema", TEXT, "response_format"),
        (schema(strict=False), "json_schema", TEXT, "response_format"),
        (outputs(json=SCHEMA), "json_schema", TEXT, "structured_outputs.json"),
        (outputs(json=json.dumps(SCHEMA)), "json_schema", TEXT, "structured_outputs.json"),
        (outputs(json=SCHEMA, regex=None), "json_schema", TEXT, "structured_outputs.json"),
        (outputs(regex="a+"), "regex", "a+", "structured_outputs.regex"),
        (outputs(grammar="start: a"), "lark", "start: a", "structured_outputs.grammar"),
        (outputs(choice=["ja", "ü"]), "choice", '["ja","ü"]', "structured_outputs.choice"),
        (outputs(json_object=True), "json_object", "", "structured_outputs"),
    ),
)
def test_what_is_asked_for(fields: dict[str, Any], kind: str, text: str, param: str) -> None:
    expected = Structure(Grammar(kind=GrammarKind(kind), text=text), param)
    assert both(**fields) == [expected, expected]


@pytest.mark.parametrize("fields", ({}, {"response_format": {"type": "text"}}))
def test_any_text_is_no_shape(fields: dict[str, Any]) -> None:
    assert both(**fields) == [None, None]


@pytest.mark.parametrize(
    ("fields", "param"),
    (
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (schema(name="no spaces"), "response_format.json_schema.name"),
        (schema(name="n" * 65), "response_format.json_schema.name"),
        (schema(name=""), "response_format.json_schema.name"),
        (schema([]), "response_format.json_schema.schema"),
        (schema(True), "response_format.json_schema.schema"),
        (schema(nested(SCHEMA_DEPTH + 1)), "response_format"),
        (schema({"const": "x" * GRAMMAR_BYTES_MAX}), "response_format"),
        (schema({"const": "\ud800"}), "response_format"),
        (outputs(), "structured_outputs"),
        (outputs(json_object=False), "structured_outputs"),
        (outputs(regex="a", choice=["b"]), "structured_outputs"),
        (outputs(json="[1]"), "structured_outputs.json"),
        (outputs(json="{"), "structured_outputs.json"),
        (outputs(regex=""), "structured_outputs.regex"),
        (outputs(regex="\ud800"), "structured_outputs.regex"),
        (outputs(regex="x" * (GRAMMAR_BYTES_MAX + 1)), "structured_outputs.regex"),
        (outputs(choice=[]), "structured_outputs.choice"),
        (outputs(choice=["a", ""]), "structured_outputs.choice"),
        (outputs(choice=["a", 1]), "structured_outputs.choice[1]"),
        (outputs(choice=["a"] * 1025), "structured_outputs.choice"),
        (outputs(grammar=5), "structured_outputs.grammar"),
        ({**schema(), **outputs(regex="a")}, "structured_outputs"),
    ),
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        both(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_as_deep_as_it_may_be() -> None:
    assert both(**schema(nested(SCHEMA_DEPTH)))[0] is not None


def test_names_from_elsewhere_are_told_where_to_go() -> None:
    for name in ("guided_json", "guided_choice", "grammar", "ebnf"):
        with pytest.raises(ApiError, match="structured_outputs") as caught:
            both(**{name: "x"})
        assert caught.value.param == name


def test_what_has_a_shape_ends_with_the_model_s_own_tokens() -> None:
    card = msgspec.structs.replace(echo_card(context_tokens=64, kv_blocks=4), eos_token_ids=(2,))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
    assert parse_chat(body, vocab_size=300).controls.stop_ids(card) == ()
    assert parse_chat(body | schema(), vocab_size=300).controls.stop_ids(card) == (2,)


def test_each_end_by_a_grammar_has_its_words() -> None:
    bad = fault(Ended(request=1, cause=Cause.GRAMMAR, detail="no such keyword"))
    dear = fault(Ended(request=1, cause=Cause.GRAMMAR_BUDGET, detail="compiling took too long"))
    assert (bad.status, bad.code) == (400, "invalid_grammar")
    assert (dear.status, dear.code) == (400, "grammar_too_costly")
    assert "no such keyword" in bad.message
    assert not bad.retryable
    assert not dear.retryable


@pytest.mark.parametrize("stream", (False, True))
def test_a_refused_shape_is_a_400_and_costs_nothing(tmp_path: Path, *, stream: bool) -> None:
    async def main() -> None:
        async with inhouse(tmp_path) as home:
            answered = await home.caller().chat(stream=stream, n=2, **outputs(regex="a+"))
            assert answered.status == 400
            error = answered.error
            assert (error["type"], error["code"], error["param"]) == (
                "invalid_request_error",
                "invalid_grammar",
                "structured_outputs.regex",
            )
            await home.at_rest()
            assert await home.house.book.spend(from_ms=0, to_ms=2**53) == 0

    asyncio.run(main())


def test_the_grammar_reaches_the_executor_with_every_choice(tmp_path: Path) -> None:
    seen: list[Submit] = []

    class Noting:
        """The echo, which is not asked to keep the grammar."""

        def __init__(self, home: Inhouse) -> None:
            self._echo = home.echo

        @property
        def card(self) -> Any:
            return self._echo.card

        @property
        def gauges(self) -> Any:
            return self._echo.gauges

        def set_terms(self, workloads: tuple[Workload, ...]) -> None:
            self._echo.set_terms(workloads)

        def set_quotas(self, quotas: tuple[Quota, ...]) -> None:
            self._echo.set_quotas(quotas)

        async def revoke(self, tags: tuple[bytes, ...], snapshot: int) -> Revoked:
            return await self._echo.revoke(tags, snapshot)

        async def purge(
            self, owner: str | None = None, tags: tuple[bytes, ...] = (), *, spare: bool = False
        ) -> Purged:
            return await self._echo.purge(owner, tags, spare=spare)

        async def list_kept(self, owner: str | None = None, *, by_label: bool = False) -> Listed:
            return await self._echo.list_kept(owner, by_label=by_label)

        async def look(self, tenant: str | None = None) -> Overview:
            return await self._echo.look(tenant)

        async def measure(self) -> Gauges:
            return await self._echo.measure()

        def take_past(self) -> tuple[DeviceTime, ...]:
            return self._echo.take_past()

        @asynccontextmanager
        async def turn(self, job: Submit) -> AsyncIterator[MailboxTurn]:
            seen.append(job)
            free = msgspec.structs.replace(job, grammar=None)
            async with self._echo.turn(free) as turn:
                yield turn

    async def main() -> None:
        async with inhouse(tmp_path) as home:
            home.house.deployments["echo"].executor = Noting(home)
            answered = await home.caller().chat(n=2, **schema())
            assert answered.status == 200

    asyncio.run(main())
    assert [job.grammar for job in seen] == [Grammar(kind=GrammarKind.JSON_SCHEMA, text=TEXT)] * 2
