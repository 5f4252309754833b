"""openai-python's `client.responses`, as customers run it, against the whole front on loopback.  API.md §1, §2 (72)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent, ResponseTextDeltaEvent

from executor.echo import EchoExecutor
from tests.clients.serving import Serving, serving
from tests.clients.test_openai_python import client
from tests.gateway.inhouse import MODEL
from tests.gateway.response_kit import followed
from tests.gateway.test_line import Hold

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as here:
        yield here
        here.at_rest()


def test_whole_and_streamed_say_the_same(site: Serving) -> None:
    with client(site) as ai:
        whole = ai.responses.create(
            model=MODEL, input="hello 😀", instructions="Be kind.", metadata={"k": "v"}
        )
        assert whole.status == "completed"
        assert "hello 😀" in whole.output_text
        assert whole.usage is not None
        assert whole.metadata == {"k": "v"}
        text, final = "", None
        with ai.responses.create(
            model=MODEL, input="hello 😀", instructions="Be kind.", stream=True
        ) as events:
            for event in events:
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type == "response.completed":
                    final = event.response
        assert text == whole.output_text
        assert final is not None
        assert final.output_text == text
        assert final.usage == whole.usage
    assert site.take_attempts() == [(200, "0")] * 2


def test_the_stream_helper_follows_every_event(site: Serving) -> None:
    with client(site) as ai, ai.responses.stream(model=MODEL, input="hello") as stream:
        deltas = [e for e in stream if isinstance(e, ResponseTextDeltaEvent)]
        final = stream.get_final_response()
    assert final.output_text == "".join(each.delta for each in deltas)
    assert final.status == "completed"


def test_what_was_said_is_sent_back_as_it_came(site: Serving) -> None:
    with client(site) as ai:
        first = ai.responses.create(model=MODEL, input="hello")
        second = ai.responses.create(
            model=MODEL,
            input=[
                {"role": "user", "content": "hello"},
                *(item.to_dict() for item in first.output),  # type: ignore[list-item]
                {"role": "user", "content": [{"type": "input_text", "text": "again"}]},
            ],
        )
        assert "assistant\n" + first.output_text in second.output_text
        assert "again" in second.output_text


def test_log_probabilities_are_read(site: Serving) -> None:
    with client(site) as ai:
        answer = ai.responses.create(
            model=MODEL,
            input="hello",
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            max_output_tokens=4,
        )
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        (item,) = answer.output
        assert item.type == "message"
        (part,) = item.content
        assert part.type == "output_text"
        assert part.logprobs is not None
        assert "".join(each.token for each in part.logprobs) == answer.output_text


def test_each_refusal_is_the_class_that_clients_catch(site: Serving) -> None:
    with client(site) as ai:
        with pytest.raises(openai.BadRequestError) as bad:
            ai.responses.create(model=MODEL, input="x", max_output_tokens=0)
        assert bad.value.param == "max_output_tokens"
        with pytest.raises(openai.BadRequestError) as hosted:
            ai.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}])
        assert (hosted.value.code, hosted.value.param) == ("unsupported", "tools[0].type")
        with pytest.raises(openai.NotFoundError):
            ai.responses.create(model="absent", input="x")


def test_what_is_stored_is_retrieved_listed_gone_on_from_and_deleted(site: Serving) -> None:
    with client(site) as ai, client(site, "acme/bob") as bob:
        first = ai.responses.create(model=MODEL, input="one", store=True)
        assert ai.responses.retrieve(first.id) == first
        listed = ai.responses.input_items.list(first.id)
        (item,) = listed.data
        assert item.type == "message"
        second = ai.responses.create(model=MODEL, input="two", previous_response_id=first.id)
        assert "user\none\nassistant\n" + first.output_text in second.output_text
        for stranger in (bob.responses.retrieve, bob.responses.delete):
            with pytest.raises(openai.NotFoundError) as absent:
                stranger(first.id)
            assert absent.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError):
            bob.responses.create(model=MODEL, input="x", previous_response_id=first.id)
        ai.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            ai.responses.retrieve(first.id)


def test_what_is_made_in_the_background_is_polled_followed_and_cancelled(tmp_path: Path) -> None:
    gate = Hold(4)
    with serving(tmp_path, echo=EchoExecutor(gate=gate)) as site, client(site) as ai:
        begun = ai.responses.create(model=MODEL, input="one", background=True)
        assert begun.status in {"queued", "in_progress"}
        cancelled = ai.responses.cancel(begun.id)
        assert cancelled.status == "cancelled"
        assert ai.responses.cancel(begun.id) == ai.responses.retrieve(begun.id) == cancelled
        with ai.responses.create(model=MODEL, input="two", background=True, stream=True) as events:
            for event in events:
                if event.type == "response.created":
                    id_ = event.response.id
                if event.type == "response.output_text.delta":
                    break
        last = event.sequence_number
        site.loop.call_soon_threadsafe(gate.opened.set)
        with ai.responses.retrieve(id_, stream=True, starting_after=last) as rest:
            kinds = [each.type for each in rest]
        assert kinds[-1] == "response.completed"
        whole = ai.responses.retrieve(id_)
        while whole.status == "in_progress":
            whole = ai.responses.retrieve(id_)
        assert whole.status == "completed"
        assert "two" in whole.output_text
        ai.responses.delete(id_)
        site.at_rest()


def whole(events: list[ResponseStreamEvent]) -> list[dict[str, object]]:
    """As they were sent: numbered without a gap, and every pair closed."""
    told = [each.to_dict() for each in events]
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    followed(told)
    return told


def stopped_at(ai: OpenAI, free: int, index: int, *, by_key: bool) -> list[ResponseStreamEvent]:
    """All that is heard of a stream that is cancelled when so much of it was read."""
    key = {"Idempotency-Key": f"stop-{free}-{index}"}
    heard: list[ResponseStreamEvent] = []
    with ai.responses.create(
        model=MODEL,
        input="one",
        stream=True,
        background=not by_key,
        extra_headers=key,
        extra_body={"stream_options": {"x_status": True}},
    ) as events:
        for event in events:
            heard.append(event)
            if event.sequence_number != index:
                continue
            assert heard[0].type == "response.created"
            if by_key:
                body = {"idempotency_key": key["Idempotency-Key"]}
                answer = ai.post("/requests/cancel", body=body, cast_to=object)
                assert answer == {"cancelled": True}
            else:
                assert ai.responses.cancel(heard[0].response.id).status == "cancelled"
    return heard


@pytest.mark.parametrize("by_key", (False, True), ids=("by_id", "by_key"))
@pytest.mark.parametrize("free", (0, 1, 3))
def test_wherever_it_is_cancelled_and_taken_up_again_nothing_is_open_or_missing(
    tmp_path: Path, free: int, by_key: bool
) -> None:
    with serving(tmp_path, echo=EchoExecutor(gate=Hold(free))) as site, client(site) as ai:
        begun = 2 + (free and 2)  # created, queued or in progress; item and part added
        for index in range(1, begun):
            heard = stopped_at(ai, free, index, by_key=by_key)
            told = whole(heard)
            last = heard[-1]
            assert last.type == "response.incomplete"
            assert (last.response.status, last.response.error) == ("cancelled", None)
            if by_key:
                continue
            assert ai.responses.retrieve(last.response.id) == last.response
            for after in range(-1, len(told)):
                with ai.responses.retrieve(
                    last.response.id, stream=True, starting_after=after
                ) as rest:
                    assert [each.to_dict() for each in rest] == told[after + 1 :]
        site.at_rest()
