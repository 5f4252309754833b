"""The whole thing as it is run: `lockgate serve`, a real model, real clients, real deaths.

A process of its own on free ports and in a state directory of its own.  The scenarios are those of
tests/bench; here they must find no fault.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.bench import scenarios
from tests.bench.admin import until_idle
from tests.bench.server import Server, Site
from tests.bench.wire import Client, Endpoint
from tests.models import default_model_path

pytestmark = pytest.mark.slow

FRANCE: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]
RECOVERY_S_MAX = 60.0
"""Ten seconds is what is promised; a noisy machine may take longer to read the model again."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.prepare(model_path=str(default_model_path()), threads=2) as running:
        yield running


@pytest.fixture
def site(server: Server) -> Site:
    return server.site


def capital(site: Site, name: str) -> tuple[str, str]:
    """The answer, streamed, and the request's id."""
    with OpenAI(api_key=site.tokens[name], base_url=site.base_url) as ai:
        raw = ai.chat.completions.with_raw_response.create(
            model=site.model, messages=FRANCE, temperature=0, max_tokens=24, stream=True
        )
        with raw.parse() as stream:
            said = "".join(c.choices[0].delta.content or "" for c in stream)
        return said, raw.headers["x-request-id"]


def test_the_capital_of_france(site: Site) -> None:
    said, _ = capital(site, "acme/alice")
    assert "Paris" in said


def test_two_tenants_beside_each_other(site: Site) -> None:
    """The same words from three people, none of whom said them before: nobody finds another's."""
    asked: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Please tell me: what is the capital of France?"}
    ]

    async def one(name: str) -> str:
        async with AsyncOpenAI(api_key=site.tokens[name], base_url=site.base_url) as ai:
            answer = await ai.chat.completions.create(
                model=site.model, messages=asked, temperature=0, max_tokens=24
            )
            usage = answer.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens == 0
            return answer.choices[0].message.content or ""

    async def both() -> list[str]:
        names = ("acme/alice", "globex/carol", "acme/bob")
        return list(await asyncio.gather(*map(one, names)))

    before = asyncio.run(site.admin.usage("globex"))
    answers = asyncio.run(both())
    assert all("Paris" in answer for answer in answers)
    after = asyncio.run(site.admin.usage("globex")).since(before)
    assert after.requests == 1


def test_nobody_is_told_nothing(site: Site) -> None:
    with OpenAI(api_key="wrong", base_url=site.base_url) as ai:
        with pytest.raises(openai.AuthenticationError):
            ai.chat.completions.create(model=site.model, messages=FRANCE)
        with pytest.raises(openai.AuthenticationError):
            ai.models.list()


def test_a_request_explains_itself_in_the_shell(server: Server) -> None:
    site = server.site
    _, request_id = capital(site, "acme/alice")
    shown = subprocess.run(
        [server.command[0], "explain", request_id, "--admin-url", site.admin_url],
        env={**os.environ, "LOCKGATE_TOKEN": site.tokens["operator"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    for stage in ("admitted", "queued", "prefill", "decode"):
        assert stage in shown
    assert request_id in shown
    assert "price_usd" in shown or "price usd" in shown


def test_many_streams_of_which_a_third_is_left(site: Site) -> None:
    seen = asyncio.run(scenarios.streams(site, count=64, abort_share=0.3, seed=20261129))
    assert seen.faults == ()
    assert seen.leftovers == {}
    assert (seen.aborted, seen.completed) == (19, 45)
    assert seen.generated_tokens == seen.billed.output_tokens > 0


def test_usage_is_the_sum_of_what_each_request_says(site: Site) -> None:
    """The report's rows against the requests' own records."""

    async def run() -> None:
        before = await site.admin.usage()
        async with AsyncOpenAI(api_key=site.tokens["acme/bob"], base_url=site.base_url) as ai:

            async def one(number: int) -> str:
                raw = await ai.chat.completions.with_raw_response.create(
                    model=site.model,
                    messages=[{"role": "user", "content": f"Count to {number}."}],
                    max_tokens=8 + number,
                    stream=True,
                )
                stream = raw.parse()
                async for _ in stream:
                    if number % 3 == 0:
                        break  # and leave
                await stream.close()
                return raw.headers["x-request-id"]

            ids = await asyncio.gather(*map(one, range(12)))
        idle_s, left = await until_idle(site.admin, deadline_s=30)
        assert idle_s is not None, left
        after = (await site.admin.usage()).since(before)
        views = [await explained(site, request_id) for request_id in ids]
        assert after.requests == len(ids)
        assert after.output_tokens == sum(view["tokens"]["output"] for view in views)
        assert after.input_tokens == sum(view["tokens"]["input"] for view in views)
        for view in views:
            assert view["tokens"]["output"] == view["tokens"]["generated"]
            assert view["tokens"]["delivered"] <= view["tokens"]["generated"]

    asyncio.run(run())


async def explained(site: Site, request_id: str) -> dict[str, dict[str, int]]:
    client = Client(Endpoint.parse(site.admin_url), site.tokens["operator"])
    try:
        status, view = await client.get("/v1/admin/requests/" + request_id)
    finally:
        client.close()
    assert status == 200
    assert isinstance(view, dict)
    return view


def test_a_killed_executor_is_an_explicit_error_and_comes_back(site: Site) -> None:
    seen = asyncio.run(scenarios.crash_executor(site, recovery_s_max=RECOVERY_S_MAX))
    assert seen.faults == ()
    assert seen.leftovers == {}


def test_a_killed_executor_is_a_retryable_error_to_the_sdk(site: Site) -> None:
    with OpenAI(api_key=site.tokens["acme/alice"], base_url=site.base_url, max_retries=0) as ai:
        pid = asyncio.run(site.admin.status()).executor.pid
        assert pid is not None
        with ai.chat.completions.create(
            model=site.model,
            messages=FRANCE,
            max_tokens=512,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            assert next(iter(stream)).choices
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(openai.APIError) as lost:
                for _ in stream:
                    pass
        assert lost.value.code == "executor_lost"
        faults, answer = [], None
        deadline_s = time.monotonic() + RECOVERY_S_MAX
        while answer is None and time.monotonic() < deadline_s:
            try:
                answer = ai.chat.completions.create(model=site.model, messages=FRANCE, max_tokens=4)
            except openai.InternalServerError as down:
                faults.append((down.status_code, int(down.response.headers["retry-after"]) >= 1))
                time.sleep(0.2)
        assert set(faults) <= {(503, True)}
        assert answer is not None, f"not back after {RECOVERY_S_MAX} s"
        assert answer.choices[0].message.content


def test_a_killed_gateway_loses_no_money(server: Server) -> None:
    """Last: it is another process afterwards."""
    before = asyncio.run(server.site.admin.usage())
    seen = asyncio.run(
        scenarios.crash_gateway(server.site, kill=server.kill, restart=server.started)
    )
    assert seen.faults == ()
    assert seen.leftovers == {}
    assert not seen.orphan
    after = asyncio.run(server.site.admin.usage()).since(before)
    rows = asyncio.run(server.site.admin.usage("acme"))
    assert after.requests >= seen.streams  # each cut stream is billed, none is lost
    assert rows.nano_usd <= asyncio.run(server.site.admin.usage()).nano_usd
    said, _ = capital(server.site, "globex/carol")
    assert "Paris" in said


def test_the_log_holds_no_secret_and_no_prompt(server: Server) -> None:
    log = (server.folder / "server.log").read_text("utf-8", "replace")
    assert "capital of France" not in log
    assert not any(token in log for token in server.site.tokens.values())
    assert "Traceback" not in log
    for path in Path(server.folder / "state").rglob("*"):
        if path.is_file():
            assert b"capital of France" not in path.read_bytes(), path
