"""The events of /v1/responses, over any sequence of what an answer can say.  API.md §1, §2 (72), §3."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.contract import Prefilling, Waiting
from gateway.api.answers import Answered, Head
from gateway.api.gathered import Gathered
from gateway.api.generate import usage_of
from gateway.api.responses.object import encode, response_answer
from gateway.api.responses.stream import ResponseStream, fault
from gateway.errors import ApiError, unavailable
from gateway.telling import Delta
from gateway.text.tokenizer import Vocabulary
from gateway.tools.calls import CallPart
from policies.facts import Meters
from tests.gateway.response_kit import events_of, followed, is_response
from tests.gateway.test_schema_answers import TOKENS
from tests.gateway.text_cards import byte_level, card_of

VOCABULARY = Vocabulary.from_card(card_of(byte_level()))
HEAD = Head("resp_0123", 1_700_000_000, "m")
REPEATED = {"parallel_tool_calls": True, "tools": [], "tool_choice": "auto", "store": False}


def stream_of(
    finish: str = "stop", *, logprobs: bool = False, x_status: bool = False
) -> ResponseStream:
    case = SimpleNamespace(
        finish_reasons={0: finish},
        meters=lambda: Meters(input=7, cached_input=2, output=3),
        ended={0: None},
        limited_by_budget=lambda index: False,
        limit=lambda index: "context" if finish == "length" else None,
    )
    controls = SimpleNamespace(logprobs=logprobs, x_status=x_status)
    speaking: Any = SimpleNamespace(
        head=HEAD,
        asked=SimpleNamespace(controls=controls, repeated=REPEATED),
        case=case,
        reading=SimpleNamespace(vocabulary=VOCABULARY),
    )
    return ResponseStream(speaking)


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    """Text and calls in any order, a call's parts in one piece or many, alone or behind text."""
    found: list[Delta] = []
    calls = 0
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            found.append(Delta(0, draw(texts), TOKENS[:1], tokens=1))
            continue
        first = CallPart(calls, draw(st.sampled_from(("", "{"))), f"call_{calls}", f"f{calls}")
        more = [CallPart(calls, part) for part in draw(st.lists(texts, max_size=3))]
        if draw(st.booleans()):
            found.append(Delta(0, draw(st.just("") | texts), calls=(first, *more)))
        else:
            found += [Delta(0, "", calls=(part,)) for part in (first, *more)]
        calls += 1
    return found


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=150)
@given(answers(), st.booleans(), st.sampled_from(("stop", "length", "tool_calls")), st.data())
def test_any_answer_is_told_in_closed_pairs_and_is_the_whole_answer(
    deltas: list[Delta], logprobs: bool, finish: str, data: st.DataObject
) -> None:
    stream, gathered = stream_of(finish, logprobs=logprobs), Gathered(logprobs)
    sent = [stream.opening()]
    waits: list[Waiting | Prefilling] = [Waiting(request=1, position=1)]
    reads: list[Waiting | Prefilling] = [Prefilling(request=1, done_tokens=1, total_tokens=2)]
    told = waits * data.draw(st.integers(0, 2)) + reads * data.draw(st.integers(0, 2))
    sent += [stream.status(each) for each in told]
    for delta in deltas:
        gathered.add(delta)
        sent += [stream.delta(delta), stream.keep_alive()]
        if data.draw(st.booleans()):  # put back into the queue, and taken up again
            sent.append(stream.status(Waiting(request=1, position=0)))
    found = followed(events_of(b"".join([*sent, stream.closing()])))
    case: Any = SimpleNamespace(meters=lambda: Meters(input=7, cached_input=2, output=3))
    answered = Answered(HEAD, (gathered.choice(0, finish),), usage_of(case), VOCABULARY)
    assert found.last == json.loads(encode(response_answer(REPEATED, answered)))
    assert found.begun.count("created") == found.begun.count("in_progress") == 1
    assert found.begun.count("queued") <= 1
    assert found.status == ("incomplete" if finish == "length" else "completed")
    assert [each["status"] for each in found.output[:-1]] == ["completed"] * (len(found.output) - 1)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=100)
@given(answers(), st.booleans(), st.booleans(), st.data())
def test_any_answer_that_is_cut_anywhere_is_told_in_closed_pairs_and_ends_as_what_it_became(
    deltas: list[Delta], logprobs: bool, cancelled: bool, data: st.DataObject
) -> None:
    stream = stream_of(logprobs=logprobs)
    sent = [stream.opening()]
    sent += [stream.delta(each) for each in deltas[: data.draw(st.integers(0, len(deltas)))]]
    why = unavailable("The model stopped.", code="executor_lost")
    found = followed(
        events_of(b"".join([*sent, stream.cancelled() if cancelled else stream.error(why)]))
    )
    assert found.status == ("cancelled" if cancelled else "failed")
    assert (found.last["error"] is None) == cancelled
    assert found.last["incomplete_details"] is None
    said = [each["status"] for each in found.output]
    assert said == ["completed"] * (len(said) - 1) + ["incomplete"] * bool(said)


def test_log_probabilities_come_with_their_text() -> None:
    stream = stream_of(logprobs=True)
    sent = [stream.opening(), *(stream.delta(Delta(0, t.text, (t,))) for t in TOKENS)]
    events = events_of(b"".join([*sent, stream.closing()]))
    told = [
        token["token"]
        for event in events
        if event["type"] == "response.output_text.delta"
        for token in event["logprobs"]
    ]
    assert told == ["a", "b"]
    done = next(each for each in events if each["type"] == "response.output_text.done")
    part = next(each for each in events if each["type"] == "response.content_part.done")["part"]
    assert [each["token"] for each in done["logprobs"]] == told
    assert (
        part["logprobs"] == done["logprobs"] == followed(events).output[0]["content"][0]["logprobs"]
    )
    assert part["logprobs"][1]["logprob"] == -9999.0


def test_a_late_fault_is_told_with_both_codes_and_what_there_was() -> None:
    stream = stream_of()
    sent = [stream.opening(), stream.delta(Delta(0, "half"))]
    why = unavailable("The model stopped.", code="executor_lost")
    found = followed(events_of(b"".join([*sent, stream.error(why)])))
    assert found.error is not None
    assert found.error["code"] == "executor_lost"
    assert found.status == "failed"
    assert found.last["error"]["code"] == "server_error"
    assert found.last["error"]["x_code"] == "executor_lost"
    (item,) = found.last["output"]
    assert (item["content"][0]["text"], item["status"]) == ("half", "incomplete")
    is_response(found.last)


def test_a_fault_before_the_first_word_has_no_output() -> None:
    stream = stream_of()
    why = ApiError(429, "rate_limit_error", "queue_backlog", "Later.")
    sent = [stream.opening(), stream.status(Waiting(request=1, position=4)), stream.error(why)]
    found = followed(events_of(b"".join(sent)))
    assert found.begun == ["created", "queued"]
    assert found.last["output"] == []
    assert found.last["error"]["code"] == "rate_limit_exceeded"


def test_progress_is_in_comments_or_in_events_as_was_asked() -> None:
    told: list[Waiting | Prefilling] = [
        Waiting(request=1, position=2, eta_ms=700),
        Waiting(request=1, position=1),
        Prefilling(request=1, done_tokens=1, total_tokens=4),
        Prefilling(request=1, done_tokens=3, total_tokens=4),
    ]
    plain, eager = stream_of(), stream_of(x_status=True)
    quiet = plain.opening() + b"".join([plain.status(each) for each in told]) + plain.closing()
    assert [line for line in quiet.decode().split("\n\n") if line.startswith(":")] == [
        ": status queued 2 700",
        ": status queued 1",
        ": status preparing 0.25",
        ": status preparing 0.75",
    ]
    assert followed(events_of(quiet)).begun == ["created", "queued", "in_progress"]
    loud = events_of(
        eager.opening() + b"".join([eager.status(each) for each in told]) + eager.closing()
    )
    assert [each["x_status"] for each in loud if "x_status" in each] == [
        {"state": "queued", "position": 2, "eta_ms": 700},
        {"state": "queued", "position": 1},
        {"state": "preparing", "progress": 0.25},
        {"state": "preparing", "progress": 0.75},
    ]


def test_what_ended_it_is_told_to_who_asked() -> None:
    why = unavailable("The model stopped.", code="executor_lost")
    failed = stream_of(x_status=True)
    said = followed(events_of(failed.opening() + failed.error(why)))
    assert said.error is not None
    assert said.error["x_status"] == {
        "state": "failed",
        "retryable": True,
        "retry_after_ms": 1000,
    }
    for eager, limit in ((True, {"reason": "context"}), (False, None)):
        cut = stream_of("length", x_status=eager)
        assert followed(events_of(cut.opening() + cut.closing())).last.get("x_limit") == limit


@pytest.mark.parametrize("finish", ("stop", "length"))
def test_an_answer_without_a_word_is_an_empty_message(finish: str) -> None:
    stream = stream_of(finish)
    found = followed(events_of(stream.opening() + stream.closing()))
    (item,) = found.output
    assert item["content"] == [
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ]
    assert found.last["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }


def test_who_may_hear_no_more_hears_an_error_that_rises_above_all() -> None:
    stream = stream_of()
    stream.opening()
    said = fault(unavailable("Gone.", code="x")).decode()
    event = json.loads(said.split("\ndata: ")[1])
    assert said.startswith("event: error\ndata: ")
    assert event["sequence_number"] == 2**31 - 1
    assert event["code"] == "x"
