"""The real `anthropic` client against a real server: answers, streams, refusals and what it tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, MessageParam, ToolParam

from executor.contract import Submit
from executor.echo import EchoExecutor
from policies.facts import Limits
from tests.clients.serving import Serving, serving
from tests.gateway.inhouse import MODEL, PLAN

pytestmark = pytest.mark.slow

HELLO: list[MessageParam] = [{"role": "user", "content": "hello 😀"}]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as here:
        yield here
        here.at_rest()


def root(site: Serving) -> str:
    return site.base_url.removesuffix("/v1")


def client(site: Serving, name: str = "acme/alice", retries: int = 0) -> Anthropic:
    return Anthropic(
        auth_token=site.home.tokens[name], base_url=root(site), max_retries=retries, api_key=None
    )


def test_whole_and_streamed_say_the_same(site: Serving) -> None:
    with client(site) as ai:
        whole = ai.messages.create(model=MODEL, max_tokens=99, messages=HELLO, system="be brief")
        (block,) = whole.content
        assert block.type == "text"
        assert "hello 😀" in block.text
        assert whole._request_id is not None
        assert whole.id == "msg_" + whole._request_id.removeprefix("req_")
        with ai.messages.stream(
            model=MODEL, max_tokens=99, messages=HELLO, system="be brief"
        ) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == block.text
        alike = {"exclude": {"id"}}
        assert final.model_dump(**alike)["content"][0]["text"] == text  # type: ignore[arg-type]
        assert (final.stop_reason, final.stop_sequence) == ("end_turn", None)
        assert final.usage == whole.usage
        kinds = [
            event.type
            for event in ai.messages.create(model=MODEL, max_tokens=99, messages=HELLO, stream=True)
        ]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_same_from_async_code(site: Serving) -> None:
    async def run() -> None:
        async with AsyncAnthropic(
            auth_token=site.home.tokens["acme/alice"], base_url=root(site), api_key=None
        ) as ai:
            whole = await ai.messages.create(model=MODEL, max_tokens=99, messages=HELLO)
            async with ai.messages.stream(model=MODEL, max_tokens=99, messages=HELLO) as stream:
                final = await stream.get_final_message()
            assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
            assert final.usage == whole.usage

    asyncio.run(run())


def test_a_stop_sequence_is_named(site: Serving) -> None:
    with client(site) as ai:
        asked = {"model": MODEL, "max_tokens": 99, "messages": HELLO}
        whole = ai.messages.create(**asked, stop_sequences=["llo"])  # type: ignore[call-overload]
        with ai.messages.stream(**asked, stop_sequences=["llo"]) as stream:  # type: ignore[arg-type]
            final = stream.get_final_message()
        for told in (whole, final):
            assert (told.stop_reason, told.stop_sequence) == ("stop_sequence", "llo")
        cut = ai.messages.create(model=MODEL, max_tokens=1, messages=HELLO)
        assert cut.stop_reason == "max_tokens"


@pytest.mark.covers("as they are billed", api="count_tokens", client="anthropic-python")
def test_tokens_are_counted_as_they_are_billed(site: Serving) -> None:
    with client(site) as ai:
        counted = ai.messages.count_tokens(model=MODEL, messages=HELLO, system="be brief")
        whole = ai.messages.create(model=MODEL, max_tokens=9, messages=HELLO, system="be brief")
        assert counted.input_tokens == whole.usage.input_tokens
        with pytest.raises(anthropic.NotFoundError):
            ai.messages.count_tokens(model="absent", messages=HELLO)


def test_a_tool_is_called_and_answered(tmp_path: Path) -> None:
    """As agents do: the whole answer, or the stream's, is put back with what the tool gave."""
    call = b'I look.<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
    turns: list[tuple[int, ...]] = []

    def says(job: Submit) -> tuple[int, ...]:
        turns.append(job.prompt)
        return tuple(call if len(turns) % 2 else b"7 degrees.")

    tools: list[ToolParam] = [{"name": "weather", "input_schema": {"type": "object"}}]
    with (
        serving(tmp_path, echo=EchoExecutor(says=says)) as site,
        client(site) as ai,
    ):
        for streamed in (False, True):
            asked: list[MessageParam] = [*HELLO]
            if streamed:
                with ai.messages.stream(
                    model=MODEL, max_tokens=99, messages=asked, tools=tools
                ) as stream:
                    kinds = [event.type for event in stream]
                    first: Message = stream.get_final_message()
                assert "input_json" in kinds
            else:
                first = ai.messages.create(model=MODEL, max_tokens=99, messages=asked, tools=tools)
            text, use = first.content
            assert first.stop_reason == "tool_use"
            assert text.type == "text"
            assert use.type == "tool_use"
            assert (use.name, use.input) == ("weather", {"city": "Bern"})
            asked.append(first.to_param())
            asked.append(
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "7 °C"}],
                }
            )
            last = ai.messages.create(model=MODEL, max_tokens=99, messages=asked, tools=tools)
            assert last.content[0].type == "text"
            assert last.content[0].text == "7 degrees."
        site.at_rest()


@pytest.mark.covers("listed, and one by name", api="models", client="anthropic-python")
def test_models_are_listed(site: Serving) -> None:
    with client(site) as ai:
        (model,) = ai.models.list()
        assert (model.id, model.type, model.max_input_tokens) == (MODEL, "model", 4095)
        assert ai.models.retrieve(MODEL) == model


@pytest.mark.covers("the key in `x-api-key`", api="messages", client="anthropic-python")
def test_a_key_is_sent_as_its_clients_do(site: Serving) -> None:
    async def made() -> str:
        body = {"tenant": "acme", "user": "alice"}
        return str((await site.home.operator().post("/v1/admin/keys", body)).json()["secret"])

    with Anthropic(api_key=site.call(made), base_url=root(site), auth_token=None) as ai:
        assert ai.messages.create(model=MODEL, max_tokens=9, messages=HELLO).content


def test_each_refusal_is_the_class_that_clients_catch(site: Serving) -> None:
    with client(site) as ai, client(site, "operator") as operator:
        with pytest.raises(anthropic.BadRequestError) as bad:
            ai.messages.create(
                model=MODEL, max_tokens=9, messages=HELLO, extra_body={"temperature": 2}
            )
        assert "temperature" in bad.value.message
        assert bad.value.type == "invalid_request_error"
        assert (bad.value.request_id or "").startswith("req_")
        with pytest.raises(anthropic.NotFoundError):
            ai.messages.create(model="absent", max_tokens=9, messages=HELLO)
        with pytest.raises(anthropic.PermissionDeniedError):
            operator.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
        with (
            Anthropic(api_key="wrong", base_url=root(site), auth_token=None) as nobody,
            pytest.raises(anthropic.AuthenticationError),
        ):
            nobody.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
        with pytest.raises(anthropic.BadRequestError):  # before the first event, so a status
            ai.messages.create(model=MODEL, max_tokens=0, messages=HELLO, stream=True)
    assert {tried for _, tried in site.take_attempts()} == {"0"}  # none of these is tried again


def test_a_dead_executor_is_a_503_and_then_a_success(site: Serving) -> None:
    with client(site) as ai:
        site.loop.call_soon_threadsafe(site.home.echo.fail)
        with pytest.raises(anthropic.APIStatusError) as down:
            ai.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
        assert (down.value.status_code, down.value.type) == (503, "overloaded_error")
        site.take_attempts()
        site.loop.call_soon_threadsafe(site.loop.call_later, 0.3, site.home.echo.recover)
        patient = ai.with_options(max_retries=2)
        assert patient.messages.create(model=MODEL, max_tokens=9, messages=HELLO).content
        assert site.take_attempts() == [(503, "0"), (200, "1")]


def test_a_fault_in_mid_stream_raises(tmp_path: Path) -> None:
    with serving(tmp_path, echo=EchoExecutor(crash_at=3)) as site, client(site, retries=2) as ai:
        with (
            pytest.raises(anthropic.APIStatusError) as lost,
            ai.messages.stream(model=MODEL, max_tokens=99, messages=HELLO) as stream,
        ):
            stream.get_final_message()
        assert lost.value.type == "overloaded_error"
        assert site.take_attempts() == [(200, "0")]


def test_a_spent_rate_succeeds_on_the_retry(tmp_path: Path) -> None:
    plan = replace(PLAN, user_limits=Limits(output_tpm=600))
    with serving(tmp_path, plan=plan) as site, client(site) as ai:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 600, "ignore_eos": True}
        site.call(lambda: site.home.caller().post("/v1/completions", body))
        with pytest.raises(anthropic.RateLimitError) as spent:
            ai.messages.create(model=MODEL, max_tokens=8, messages=HELLO)
        assert spent.value.type == "rate_limit_error"
        assert spent.value.response.headers["retry-after"] == "1"
        site.take_attempts()
        patient = ai.with_options(max_retries=2)
        assert patient.messages.create(model=MODEL, max_tokens=8, messages=HELLO).content
        assert site.take_attempts() == [(429, "0"), (200, "1")]
        site.at_rest()
