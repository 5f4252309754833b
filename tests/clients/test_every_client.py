"""Each client library does each thing against the whole front on loopback.  API.md §0 (3–5), §1, §2, §3.

One test, every client: what differs between them is in `driving`, and where one deviates, in `matrix`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.echo import EchoExecutor
from gateway.house import Timings
from policies.facts import Budget, Limits
from tenants.tempo import MemoryTempo
from tests.clients.conftest import Clients
from tests.clients.driving import Answer, Ask, Refused
from tests.clients.matrix import DEVIATIONS, Cell
from tests.clients.serving import Serving, serving
from tests.gateway.inhouse import MODEL, PLAN
from tests.gateway.test_line import Hold

pytestmark = pytest.mark.slow

OPENAI = ("openai-python", "openai-node")
CHAT = (*OPENAI, "AI SDK", "LangChain", "LangChain.js")
PAIRS = (
    *(("chat", client) for client in CHAT),
    *(("responses", client) for client in CHAT),
    ("messages", "anthropic-python"),
)
every = pytest.mark.parametrize(("api", "client"), PAIRS)
every_chat = pytest.mark.parametrize(("api", "client"), PAIRS[: len(CHAT)])


SAID = "user\nhello 😀\nassistant\n"
"""The echo's answer to `ask`."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as here:
        yield here
        here.at_rest()


def ask(site: Serving, say: str = "hello 😀", **more: Any) -> Ask:
    settings: dict[str, Any] = {
        "base_url": site.base_url,
        "key": site.home.tokens["acme/alice"],
        "model": MODEL,
        "messages": [{"role": "user", "content": say}],
    }
    return Ask(**settings | more)


def answered(clients: Clients, client: str, ask: Ask) -> Answer:
    [told] = clients[client].ask(ask)
    assert told.answer is not None, told.refused
    return told.answer


def refused(clients: Clients, client: str, ask: Ask) -> Refused:
    [told] = clients[client].ask(ask)
    assert told.refused is not None, told.answer
    return told.refused


@pytest.mark.covers("whole and streamed say the same")
@every
def test_whole_and_streamed_say_the_same(
    site: Serving, clients: Clients, api: str, client: str
) -> None:
    whole = answered(clients, client, ask(site, api=api))
    streamed = answered(clients, client, ask(site, api=api, stream=True))
    assert whole.text == streamed.text == SAID
    assert whole.finish == streamed.finish == "stop"
    assert streamed.pieces > 1
    cut = answered(clients, client, ask(site, api=api, stream=True, max_tokens=3))
    assert (cut.text, cut.finish) == ("use", "length")


@pytest.mark.covers("usage, and in a stream of chat to who asks for it")
@every
def test_usage(site: Serving, clients: Clients, api: str, client: str) -> None:
    whole = answered(clients, client, ask(site, api=api))
    assert whole.usage is not None
    assert min(whole.usage) > 0
    streamed = answered(clients, client, ask(site, api=api, stream=True, usage=True))
    assert streamed.usage == whole.usage
    if api == "chat":
        assert answered(clients, client, ask(site, stream=True)).usage is None


@pytest.mark.covers("many at once")
@every_chat
def test_many_at_once(site: Serving, clients: Clients, api: str, client: str) -> None:
    for stream in (False, True):
        told = clients[client].ask(ask(site, api=api, stream=stream, times=16))
        assert {one.answer and one.answer.text for one in told} == {SAID}
    assert len(site.take_attempts()) == 32


@pytest.mark.covers("a refusal is an error that says why, and is not tried again")
@every
@pytest.mark.parametrize("stream", (False, True))
def test_refusals(site: Serving, clients: Clients, api: str, client: str, *, stream: bool) -> None:
    text = "input" if api == "responses" else "messages"
    for wrong, status, code, param in (
        ({"key": "wrong"}, 401, "invalid_api_key", None),
        ({"model": "absent"}, 404, "model_not_found", "model"),
        ({"temperature": 9.0}, 400, "invalid_request", "temperature"),
        ({"say": "x" * 9999}, 400, "context_length_exceeded", text),
    ):
        told = refused(clients, client, ask(site, api=api, stream=stream, retries=2, **wrong))
        assert told.status == status
        if api == "messages":  # its errors have a type and words
            assert told.type in {"authentication_error", "not_found_error", "invalid_request_error"}
        else:
            assert (told.code, told.param) == (code, param)
        assert told.message
        assert [status for status, _ in site.take_attempts()] == [status]


@pytest.mark.covers("a spent rate, and an executor that is away: the retry succeeds")
@every
def test_a_spent_rate(tmp_path: Path, clients: Clients, api: str, client: str) -> None:
    plan, now_ms = replace(PLAN, user_limits=Limits(output_tpm=600)), [1_000_000]
    with (
        serving(tmp_path, plan=plan, tempo=MemoryTempo(lambda: now_ms[0])) as site,
        ThreadPoolExecutor(1) as beside,
    ):
        spend(site)
        spent = refused(clients, client, ask(site, api=api, max_tokens=5))
        assert spent.status == 429
        assert spent.code == (None if api == "messages" else "rate_limit_exceeded")
        site.take_attempts()
        patient = ask(site, api=api, max_tokens=5, stream=True, retries=2)
        told = beside.submit(answered, clients, client, patient)
        site.until(lambda: len(site.attempts) > 0)
        now_ms[0] += 1000  # as long as it was told to wait
        assert told.result().text
        assert [status for status, _ in site.take_attempts()] == [429, 200]
        site.at_rest()


def spend(site: Serving) -> None:
    """All of alice's rate, by an answer that goes on to its limit."""

    body = {"model": MODEL, "prompt": "x", "max_tokens": 600, "ignore_eos": True}
    assert site.call(lambda: site.home.caller().post("/v1/completions", body)).status == 200


@pytest.mark.covers("a spent rate, and an executor that is away: the retry succeeds")
@every
def test_an_executor_that_comes_back(
    site: Serving, clients: Clients, api: str, client: str
) -> None:
    site.loop.call_soon_threadsafe(site.home.echo.fail)
    down = refused(clients, client, ask(site, api=api))
    assert (down.status, down.type) == (503, "overloaded_error")
    assert site.take_attempts()[0][0] == 503
    site.loop.call_soon_threadsafe(site.loop.call_later, 0.3, site.home.echo.recover)
    assert answered(clients, client, ask(site, api=api, retries=2)).text
    assert [status for status, _ in site.take_attempts()] == [503, 200]


@pytest.mark.covers("a spent budget is not tried again")
@every_chat
def test_a_spent_budget(tmp_path: Path, clients: Clients, api: str, client: str) -> None:
    with serving(tmp_path, plan=replace(PLAN, budget=Budget(1))) as site:
        spent = refused(clients, client, ask(site, retries=1))
        assert (spent.status, spent.code) == (429, "insufficient_quota")
        deviates = Cell("chat", "a spent budget is not tried again", client) in DEVIATIONS
        assert len(site.take_attempts()) == (2 if deviates else 1)


@pytest.mark.covers("comments while it waits in line harm nothing")
@every
def test_waiting_in_line(tmp_path: Path, clients: Clients, api: str, client: str) -> None:
    hold = Hold()
    timings = Timings(keepalive_ms=20)
    with (
        serving(tmp_path, echo=EchoExecutor(seqs_max=1, gate=hold), timings=timings) as site,
        ThreadPoolExecutor(1) as aside,
    ):
        first = aside.submit(site.call, lambda: site.home.caller("acme/bob").chat("first"))
        site.until(hold.waiting.is_set)
        with ThreadPoolExecutor(1) as beside:
            told = beside.submit(
                answered, clients, client, ask(site, api=api, stream=True, usage=True)
            )
            site.until(lambda: site.sent >= 3)  # comments, since nobody speaks yet
            site.loop.call_soon_threadsafe(hold.opened.set)
            answer = told.result()
        assert first.result().status == 200
        assert (answer.text, answer.finish) == (SAID, "stop")
        site.at_rest()


@pytest.mark.covers("a fault in the middle is an error, never a short success")
@every
def test_a_fault_in_the_middle(tmp_path: Path, clients: Clients, api: str, client: str) -> None:
    with serving(tmp_path, echo=EchoExecutor(crash_at=3)) as site:
        lost = refused(clients, client, ask(site, api=api, stream=True, retries=2))
        assert lost.code in ({None} if api == "messages" else {"executor_lost", "server_error"})
        assert lost.message
        assert [status for status, _ in site.take_attempts()] == [200]
        site.at_rest()


@pytest.mark.covers("leaving a stream frees its place, and is billed once")
@every
def test_leaving(tmp_path: Path, clients: Clients, api: str, client: str) -> None:
    with serving(tmp_path, echo=EchoExecutor(gate=Hold(5))) as site:
        answer = answered(clients, client, ask(site, api=api, stream=True, leave_after=1))
        assert answer.left
        assert answer.finish is None
        site.at_rest()
        generated = site.home.echo.gauges.generated_tokens
        rows = site.call(lambda: site.home.operator().get("/v1/admin/usage", "by=tenant")).json()
        assert [row["output_tokens"] for row in rows["rows"]] == [generated]
        assert 1 <= generated <= 5


WEATHER = {
    "name": "weather",
    "description": "How it is there",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "%s"}}</tool_call>'


def echo(text: str) -> EchoExecutor:
    """One that says this."""
    return EchoExecutor(says=lambda job: tuple(text.encode()))


@pytest.mark.covers("tools are called, one and several, whole and streamed")
@every
def test_tools(tmp_path: Path, clients: Clients, api: str, client: str) -> None:
    text = "I look." + CALL % "Bern" + CALL % "Ürikon 😀"
    with serving(tmp_path, echo=echo(text)) as site:
        for stream in (False, True):
            told = answered(
                clients, client, ask(site, api=api, stream=stream, tools=[WEATHER], max_tokens=300)
            )
            assert told.text == "I look."
            assert [(call.name, call.read()) for call in told.calls] == [
                ("weather", {"city": "Bern"}),
                ("weather", {"city": "Ürikon 😀"}),
            ]
            assert told.finish in {"tool_calls", "tool-calls", "stop"}
            assert told.finish != "stop" or api == "responses"  # its status says nothing of calls
        site.at_rest()


@pytest.mark.covers("a JSON schema")
@pytest.mark.parametrize(("api", "client"), PAIRS[:-1])
def test_an_answer_of_a_given_shape(
    tmp_path: Path, clients: Clients, api: str, client: str
) -> None:
    with serving(tmp_path, echo=echo('{"city": "Bern"}')) as site:
        for stream in (False, True):
            asked = ask(site, api=api, stream=stream, schema=WEATHER["parameters"])
            assert answered(clients, client, asked).text == '{"city": "Bern"}'
        site.at_rest()


@pytest.mark.covers("whole and streamed say the same", api="completions")
@pytest.mark.parametrize("client", CHAT)
def test_completions(site: Serving, clients: Clients, client: str) -> None:
    whole = answered(clients, client, ask(site, api="completions"))
    streamed = answered(clients, client, ask(site, api="completions", stream=True))
    assert whole.text == streamed.text
    assert "hello 😀" in whole.text  # AI SDK writes its messages into the prompt
    assert streamed.pieces > 1


@pytest.mark.covers("listed, and one by name", api="models")
@pytest.mark.parametrize("client", OPENAI)
def test_models(site: Serving, clients: Clients, client: str) -> None:
    told = answered(clients, client, ask(site, api="models"))
    assert (told.text, told.finish) == (MODEL, MODEL)
