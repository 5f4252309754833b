"""A chat in the terminal: streamed, faults told, the conversation kept only where it went well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import httpx2
import msgspec
import pytest

from gateway.cli.chat import Asking, converse, streamed, waiting, whole
from gateway.cli.client import Server
from gateway.cli.show import Refusal
from gateway.cli.sse import LINE_BYTES_MAX, Comment, Data, NotEvents, events


def stream(*pieces: str, end: str = "stop") -> bytes:
    chunks: list[object] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    chunks += [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    chunks += [{"choices": [{"delta": {}, "finish_reason": end}]}] if end else []
    lines = [b"data: " + msgspec.json.encode(chunk) for chunk in chunks]
    return b"\n\n".join([b": status queued 3 4000", *lines, b"data: [DONE]"]) + b"\n\n"


def asking(*answers: httpx2.Response, seen: list[httpx2.Request] | None = None) -> Asking:
    left = list(answers)

    def handler(request: httpx2.Request) -> httpx2.Response:
        if seen is not None:
            seen.append(request)
        return left.pop(0)

    return Asking(Server("http://h", "t", httpx2.MockTransport(handler)), "m", 9, None, 1)


USER = [{"role": "user", "content": "hi"}]


def test_pieces_come_as_they_are_and_the_queue_is_told() -> None:
    told: list[str] = []
    got = list(
        streamed(
            asking(httpx2.Response(200, content=stream("Pa", "ris\u2028é"))), USER, told.append
        )
    )
    assert got == ["Pa", "ris\u2028é"]
    assert told == ["status queued 3 4000"]


@pytest.mark.parametrize(
    ("comment", "says"),
    (
        ("status queued 3 4000", "(waiting, place 3, about 4 s)"),
        ("status queued 0 100", "(waiting, place 0, about 1 s)"),
        ("status queued 3", "(waiting, place 3)"),
        ("status queued 3 soon", "(waiting, place 3)"),
        ("status queued", None),
        ("status preparing 0.4", None),
        ("keep-alive", None),
    ),
)
def test_the_place_in_words(comment: str, says: str | None) -> None:
    assert waiting(comment) == says


@pytest.mark.parametrize(
    ("answer", "says"),
    (
        (httpx2.Response(429, json={"error": {"message": "Too many."}}), "Too many."),
        (httpx2.Response(401, content=b"<html>"), "did not accept the token"),
        (httpx2.Response(200, content=b'data: {"error":{"message":"lost it"}}\n\n'), "lost it"),
        (httpx2.Response(200, content=stream("Pa", end="")), "broke off"),
        (httpx2.Response(200, content=b""), "broke off"),
        (httpx2.Response(200, content=b"data: <\n"), "no event stream"),
        (httpx2.Response(200, content=b"data: []\n"), "no event stream"),
        (httpx2.Response(200, content=b"data: 1\n"), "no event stream"),
    ),
)
def test_every_fault_is_a_sentence(answer: httpx2.Response, says: str) -> None:
    with pytest.raises(Refusal) as refusal:
        list(streamed(asking(answer), USER, lambda _: None))
    assert says in refusal.value.message


def test_the_whole_answer_is_one_document() -> None:
    seen: list[httpx2.Request] = []
    assert whole(asking(httpx2.Response(200, json={"id": "x"}), seen=seen), USER) == {"id": "x"}
    body = {"model": "m", "messages": USER, "max_tokens": 9, "seed": 1}
    assert msgspec.json.decode(seen[0].content) == body


def test_a_conversation_keeps_what_went_well(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[httpx2.Request] = []
    talk = asking(
        httpx2.Response(200, content=stream("one")),
        httpx2.Response(503, json={"error": {"message": "busy"}}),
        httpx2.Response(200, content=stream("two\x1b[2J")),
        httpx2.Response(200, content=stream("three")),
        seen=seen,
    )
    lines: Iterator[str] = iter(["a", "b", "", "c", "/help", "/reset", "d", "/exit", "never"])
    converse(talk, [{"role": "system", "content": "s"}], lambda: next(lines))
    sent: Sequence[list[str]] = [
        [m["content"] for m in msgspec.json.decode(request.content)["messages"]] for request in seen
    ]
    assert sent == [
        ["s", "a"],
        ["s", "a", "one", "b"],
        ["s", "a", "one", "c"],
        ["s", "d"],
    ]
    out = capsys.readouterr()
    assert "two�[2J" in out.out
    assert "busy" in out.err


def test_events_do_not_depend_on_how_bytes_arrive() -> None:
    raw = b": hi\r\ndata: 1\nevent: x\n\ndata:2\n"
    expected = [Comment("hi"), Data(b"1"), Data(b"2")]
    assert list(events([raw])) == expected
    assert list(events(raw[i : i + 1] for i in range(len(raw)))) == expected


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(NotEvents):
        list(events([b"x" * (LINE_BYTES_MAX + 1)]))
