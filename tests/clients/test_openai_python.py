"""openai-python as customers run it, against the whole front on loopback.  API.md §0 (2, 4, 5), §4."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from executor.echo import EchoExecutor
from policies.facts import Budget, Limits
from tests.clients.serving import Serving, serving
from tests.gateway.inhouse import MODEL, PLAN
from tests.gateway.test_line import Hold

pytestmark = pytest.mark.slow

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello 😀"}]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as here:
        yield here
        here.at_rest()


def client(site: Serving, name: str = "acme/alice", retries: int = 0) -> OpenAI:
    return OpenAI(api_key=site.home.tokens[name], base_url=site.base_url, max_retries=retries)


def async_client(site: Serving, name: str = "acme/alice", retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=site.home.tokens[name], base_url=site.base_url, max_retries=retries)


def test_whole_and_streamed_say_the_same(site: Serving) -> None:
    with client(site) as ai:
        whole = ai.chat.completions.create(model=MODEL, messages=HELLO)
        said = whole.choices[0].message.content
        assert said is not None
        assert "hello 😀" in said
        assert whole.usage is not None
        text, usage = "", None
        with ai.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        ) as stream:
            for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
        assert text == said
        assert usage == whole.usage
    assert site.take_attempts() == [(200, "0")] * 2


def test_the_same_from_async_code(site: Serving) -> None:
    async def run() -> None:
        async with async_client(site) as ai:
            whole = await ai.chat.completions.create(model=MODEL, messages=HELLO)
            text = ""
            stream = await ai.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            async for chunk in stream:
                assert chunk.choices
                text += chunk.choices[0].delta.content or ""
            assert text == whole.choices[0].message.content
            legacy = await ai.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=1)
            assert [choice.text for choice in legacy.choices] == ["a", "a", "b", "b"]
            many = await asyncio.gather(
                *(ai.chat.completions.create(model=MODEL, messages=HELLO) for _ in range(16))
            )
            assert {each.choices[0].message.content for each in many} == {text}

    asyncio.run(run())


def test_the_stream_helper_finds_every_event(site: Serving) -> None:
    with client(site) as ai, ai.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.done") == 1
    assert final.choices[0].finish_reason == "stop"


def test_log_probabilities_and_legacy_completions_are_read(site: Serving) -> None:
    with client(site) as ai:
        answer = ai.chat.completions.create(
            model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        joined = "".join(token.token for token in logprobs.content)
        assert joined == answer.choices[0].message.content
        with ai.completions.create(model=MODEL, prompt="abc", stream=True) as stream:
            assert "".join(chunk.choices[0].text for chunk in stream) == "abc"


def test_models_are_listed(site: Serving) -> None:
    with client(site) as ai:
        assert [model.id for model in ai.models.list()] == [MODEL]
        assert ai.models.retrieve(MODEL).owned_by == "lockgate"


def test_headers_are_readable(site: Serving) -> None:
    with client(site) as ai:
        raw = ai.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
        assert raw.headers["x-request-id"].startswith("req_")
        assert raw.request_id == raw.headers["x-request-id"]
        assert int(raw.headers["openai-processing-ms"]) >= 0
        assert int(raw.headers["x-ratelimit-limit-requests"]) == 100_000
        assert int(raw.headers["x-ratelimit-remaining-requests"]) < 100_000
        assert raw.parse().choices


def test_each_refusal_is_the_class_that_clients_catch(site: Serving) -> None:
    with client(site) as ai, client(site, "operator") as operator:
        with pytest.raises(openai.BadRequestError) as bad:
            ai.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
        assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.NotFoundError) as absent:
            ai.chat.completions.create(model="absent", messages=HELLO)
        assert absent.value.code == "model_not_found"
        with pytest.raises(openai.PermissionDeniedError):
            operator.chat.completions.create(model=MODEL, messages=HELLO)
        with OpenAI(api_key="wrong", base_url=site.base_url) as nobody:
            with pytest.raises(openai.AuthenticationError) as unknown:
                nobody.chat.completions.create(model=MODEL, messages=HELLO)
            assert unknown.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                nobody.models.list()
        with pytest.raises(openai.BadRequestError):  # before the first event, so a status
            ai.chat.completions.create(model=MODEL, messages=HELLO, stream=True, n=9)
        with pytest.raises(openai.BadRequestError) as long:
            ai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x" * 9999}]
            )
        assert long.value.code == "context_length_exceeded"
    assert {tried for _, tried in site.take_attempts()} == {"0"}  # none of these is tried again


def test_a_dead_executor_is_a_503_and_then_a_success(site: Serving) -> None:
    with client(site) as ai:
        site.loop.call_soon_threadsafe(site.home.echo.fail)
        with pytest.raises(openai.InternalServerError) as down:
            ai.chat.completions.create(model=MODEL, messages=HELLO)
        assert (down.value.status_code, down.value.type) == (503, "overloaded_error")
        assert site.take_attempts() == [(503, "0")]
        site.loop.call_soon_threadsafe(site.loop.call_later, 0.3, site.home.echo.recover)
        patient = ai.with_options(max_retries=2)
        assert patient.chat.completions.create(model=MODEL, messages=HELLO).choices
        assert site.take_attempts() == [(503, "0"), (200, "1")]


def test_a_fault_in_mid_stream_raises(tmp_path: Path) -> None:
    with serving(tmp_path, echo=EchoExecutor(crash_at=3)) as site, client(site, retries=2) as ai:
        with (
            pytest.raises(openai.APIError) as lost,
            ai.chat.completions.create(model=MODEL, messages=HELLO, stream=True) as stream,
        ):
            for _ in stream:
                pass
        assert lost.value.code == "executor_lost"
        assert site.take_attempts() == [(200, "0")]


def test_a_spent_rate_succeeds_on_the_retry(tmp_path: Path) -> None:
    plan = replace(PLAN, user_limits=Limits(output_tpm=600))
    with serving(tmp_path, plan=plan) as site, client(site) as ai:
        ai.completions.create(
            model=MODEL, prompt="x", max_tokens=600, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.RateLimitError) as spent:
            ai.completions.create(model=MODEL, prompt="x", max_tokens=5)
        assert spent.value.code == "rate_limit_exceeded"
        assert spent.value.response.headers["retry-after"] == "1"
        site.take_attempts()
        patient = ai.with_options(max_retries=2)
        answer = patient.completions.create(model=MODEL, prompt="x", max_tokens=8)
        assert answer.choices[0].text == "x"
        assert site.take_attempts() == [(429, "0"), (200, "1")]
        site.at_rest()


def test_a_spent_rate_succeeds_on_the_retry_from_async_code(tmp_path: Path) -> None:
    plan = replace(PLAN, user_limits=Limits(output_tpm=600))

    async def run(site: Serving) -> None:
        async with async_client(site, retries=2) as ai:
            await ai.completions.create(
                model=MODEL, prompt="x", max_tokens=600, extra_body={"ignore_eos": True}
            )
            answer = await ai.completions.create(model=MODEL, prompt="x", max_tokens=8)
            assert answer.choices[0].text == "x"

    with serving(tmp_path, plan=plan) as site:
        asyncio.run(run(site))
        assert site.take_attempts() == [(200, "0"), (429, "0"), (200, "1")]


def test_a_spent_budget_is_not_tried_again(tmp_path: Path) -> None:
    plan = replace(PLAN, budget=Budget(1))
    with serving(tmp_path, plan=plan) as site, client(site, retries=2) as ai:
        with pytest.raises(openai.RateLimitError) as spent:
            ai.chat.completions.create(model=MODEL, messages=HELLO)
        assert (spent.value.code, spent.value.type) == ("insufficient_quota",) * 2
        assert site.take_attempts() == [(429, "0")]


@pytest.mark.parametrize("wait", (False, True))
def test_closing_a_stream_frees_the_engine(tmp_path: Path, *, wait: bool) -> None:
    hold = Hold(5)
    with serving(tmp_path, echo=EchoExecutor(gate=hold)) as site:
        if wait:
            asyncio.run(left_async(site))
        else:
            with client(site) as ai:
                stream = ai.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
                assert next(iter(stream)).choices
                stream.close()
        site.at_rest()
        generated = site.home.echo.gauges.generated_tokens
        rows = site.call(lambda: site.home.operator().get("/v1/admin/usage", "by=tenant")).json()
        assert [row["output_tokens"] for row in rows["rows"]] == [generated]
        assert 1 <= generated <= 5


async def left_async(site: Serving) -> None:
    async with async_client(site) as ai:
        stream = await ai.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        async for chunk in stream:
            assert chunk.choices
            break
        await stream.close()


def test_a_key_works_as_an_api_key(site: Serving) -> None:
    ask = {"tenant": "acme", "user": "robot"}
    made = site.call(lambda: site.home.operator("acme/admin").post("/v1/admin/keys", ask)).json()
    with OpenAI(api_key=made["secret"], base_url=site.base_url, max_retries=0) as ai:
        assert ai.chat.completions.create(model=MODEL, messages=HELLO).choices
        site.call(lambda: site.home.operator().post(f"/v1/admin/keys/{made['id']}/revoke", {}))
        with pytest.raises(openai.AuthenticationError):
            ai.chat.completions.create(model=MODEL, messages=HELLO)


def test_metadata_is_filed_with_the_request_and_what_is_none_is_said(site: Serving) -> None:
    said = {"job": "nightly", "kind": "größe ✓"}
    with client(site) as ai:
        told = ai.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, metadata=said
        )
        found = site.call(lambda: site.home.house.book.explain(told.headers["x-request-id"]))
        assert found is not None
        assert {tag.name: tag.value for tag in found.tags} == said
        for wrong in ({"n" * 65: "x"}, {"n": "v" * 513}, {f"n{i}": "v" for i in range(17)}):
            with pytest.raises(openai.BadRequestError, match="metadata"):
                ai.chat.completions.create(model=MODEL, messages=HELLO, metadata=wrong)
