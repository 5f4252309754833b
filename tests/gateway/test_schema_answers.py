from __future__ import annotations

import json
import math
from typing import Any

import pytest

from executor.contract import Logprob
from gateway.api import sse
from gateway.api.answers import Answered, Choice, Head, Usage, chat_answer, completion_answer
from gateway.errors import unavailable
from gateway.text.reply import ShownToken
from gateway.text.tokenizer import Vocabulary
from tests.gateway.text_cards import byte_level, card_of

VOCABULARY = Vocabulary.from_card(card_of(byte_level()))
HEAD = Head("chatcmpl-1", 1_700_000_000, "m", "fp_1", "default")
USAGE = Usage(prompt=7, completion=3, cached=2)
A, B = (VOCABULARY.encode_content(char)[0] for char in "ab")
TOKENS = (
    ShownToken("a", b"a", Logprob(A, -0.25), (Logprob(A, -0.25), Logprob(B, -math.inf))),
    ShownToken("b", b"b", Logprob(B, -math.inf), (Logprob(A, -0.5),)),
)


def events(*chunks: bytes) -> list[Any]:
    for chunk in chunks:
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"}\n\n")
        assert chunk.count(b"\n") == 2
        assert b"\r" not in chunk
    return [json.loads(chunk[6:]) for chunk in chunks]


def test_a_chat_answer() -> None:
    choices = (Choice(0, "ab", "stop", TOKENS), Choice(1, "é", "length"))
    answer = json.loads(
        chat_answer(Answered(HEAD, choices, USAGE, VOCABULARY, x_limit="token_budget"))
    )
    content = answer["choices"][0].pop("logprobs")["content"]
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "refusal": None},
                "finish_reason": "stop",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "é", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            },
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "x_limit": {"reason": "token_budget"},
    }
    assert content[0] == {
        "token": "a",
        "logprob": -0.25,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.25, "bytes": [97]},
            {"token": "b", "logprob": -9999.0, "bytes": [98]},
        ],
    }
    assert content[1]["logprob"] == -9999.0


def test_a_completion_answer_in_the_legacy_shape() -> None:
    answer = json.loads(
        completion_answer(Answered(HEAD, (Choice(0, "ab", "stop", TOKENS),), USAGE, VOCABULARY))
    )
    assert answer["object"] == "text_completion"
    assert answer["choices"][0] == {
        "index": 0,
        "text": "ab",
        "finish_reason": "stop",
        "logprobs": {
            "tokens": ["a", "b"],
            "token_logprobs": [-0.25, -9999.0],
            "top_logprobs": [{"a": -0.25, "b": -9999.0}, {"a": -0.5, "b": -9999.0}],
            "text_offset": [0, 1],
        },
    }
    assert "x_limit" not in answer


def test_usage_is_equal_in_both_modes() -> None:
    whole = json.loads(chat_answer(Answered(HEAD, (), USAGE, VOCABULARY)))["usage"]
    (chunk,) = events(sse.ChatStream(HEAD, VOCABULARY, include_usage=True).usage(USAGE))
    assert chunk["usage"] == whole
    assert chunk["choices"] == []


def test_a_chat_stream_in_order() -> None:
    stream = sse.ChatStream(HEAD, VOCABULARY)
    chunks = events(stream.role(0), stream.delta(0, 'a"\n'), stream.finish(0, "stop"))
    head = {name: chunks[0][name] for name in ("id", "object", "created", "model")}
    assert head["object"] == "chat.completion.chunk"
    for chunk in chunks:
        assert head.items() <= chunk.items()
        assert chunk["service_tier"] == "default"
        assert "usage" not in chunk
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in (
            ({"role": "assistant", "content": ""}, None),
            ({"content": 'a"\n'}, None),
            ({}, "stop"),
        )
    ]


@pytest.mark.parametrize("kind", (sse.ChatStream, sse.CompletionStream))
def test_usage_chunks_only_where_asked(kind: type[sse.ChatStream | sse.CompletionStream]) -> None:
    stream = kind(HEAD, VOCABULARY, include_usage=True)
    plain, continuous, last = events(
        stream.delta(0, "x"), stream.delta(0, "x", usage=USAGE), stream.finish(0, "length")
    )
    assert plain["usage"] is last["usage"] is None
    assert continuous["usage"]["total_tokens"] == 10
    assert continuous["choices"] != []


@pytest.mark.parametrize("kind", (sse.ChatStream, sse.CompletionStream))
@pytest.mark.parametrize("include_usage", (True, False))
def test_a_limit_is_named_beside_the_finish(
    kind: type[sse.ChatStream | sse.CompletionStream], *, include_usage: bool
) -> None:
    stream = kind(HEAD, VOCABULARY, include_usage=include_usage)
    (chunk,) = events(stream.finish(1, "length", x_limit="token_budget"))
    assert chunk["x_limit"] == {"reason": "token_budget"}
    assert ("usage" in chunk) == include_usage
    assert chunk["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("kind", (sse.ChatStream, sse.CompletionStream))
def test_an_empty_delta_is_no_chunk(kind: type[sse.ChatStream | sse.CompletionStream]) -> None:
    assert kind(HEAD, VOCABULARY).delta(0, "") == b""


def test_log_probabilities_in_a_stream() -> None:
    chat = sse.ChatStream(HEAD, VOCABULARY, logprobs=True)
    (chunk,) = events(chat.delta(0, "ab", TOKENS))
    assert [token["token"] for token in chunk["choices"][0]["logprobs"]["content"]] == ["a", "b"]
    legacy = sse.CompletionStream(HEAD, VOCABULARY, logprobs=True)
    chunks = events(*(legacy.delta(i, "ab", TOKENS) for i in (0, 1, 0)))
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]
    assert offsets == [[0, 1], [0, 1], [2, 3]]


def test_a_completion_stream_has_text() -> None:
    stream = sse.CompletionStream(HEAD, VOCABULARY)
    first, last = events(stream.delta(2, "x"), stream.finish(2, "stop"))
    assert first["object"] == "text_completion"
    assert first["choices"] == [{"index": 2, "text": "x", "logprobs": None, "finish_reason": None}]
    assert last["choices"] == [{"index": 2, "text": "", "logprobs": None, "finish_reason": "stop"}]


def test_comments_are_lines_that_no_client_reads_as_data() -> None:
    assert sse.queued_comment(3, 4000) == b": status queued 3 4000\n\n"
    assert sse.queued_comment(0, None) == b": status queued 0\n\n"
    assert sse.preparing_comment(0.4) == b": status preparing 0.4\n\n"
    assert sse.preparing_comment(7.0) == b": status preparing 1\n\n"
    for comment in (sse.queued_comment(1, 2), sse.KEEP_ALIVE):
        assert comment.startswith(b":")
        assert comment.endswith(b"\n\n")


def test_status_events_have_the_shape_of_a_chunk() -> None:
    (event,) = events(sse.ChatStream(HEAD, VOCABULARY).status("queued", position=3, eta_ms=4000))
    assert event["choices"] == []
    assert event["x_status"] == {"state": "queued", "position": 3, "eta_ms": 4000}


def test_an_error_event() -> None:
    written = sse.fault(unavailable("The executor stopped.", code="executor_lost"))
    assert written.endswith(b"\n\ndata: [DONE]\n\n")
    (event,) = events(written.removesuffix(sse.DONE))
    assert event["error"].keys() == {"message", "type", "param", "code"}
    assert "choices" not in event
