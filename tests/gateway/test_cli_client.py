"""Whatever the server does, the command line says one clear sentence and never leaks the token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import msgspec
import pytest

from gateway.cli.client import Known, Server, connect, read_known
from gateway.cli.show import Refusal, clean

TOKEN = "tok-canary"
Handler = Callable[[httpx2.Request], httpx2.Response]


def server(handler: Handler) -> Server:
    return Server("http://127.0.0.1:8081", TOKEN, httpx2.MockTransport(handler))


def answers(status: int, body: object = None, **headers: str) -> Handler:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return lambda _: httpx2.Response(status, content=content, headers=headers)


def known(folder: Path) -> Path:
    (folder / "dev.json").write_bytes(
        msgspec.json.encode(Known("http://127.0.0.1:1", "http://127.0.0.1:2", {"operator": TOKEN}))
    )
    return folder


def test_a_question_carries_the_token_and_no_empty_parameters() -> None:
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"ok": True})

    assert server(handler).get("/v1/admin/keys", {"tenant": "a&b", "x": None}) == {"ok": True}
    assert server(handler).post("/v1/admin/keys", {"tenant": "a", "project": None}) == {"ok": True}
    assert seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert str(seen[0].url) == "http://127.0.0.1:8081/v1/admin/keys?tenant=a%26b"
    assert msgspec.json.decode(seen[1].content) == {"tenant": "a"}


@pytest.mark.parametrize(
    ("status", "body", "says"),
    (
        (400, {"title": "Bad", "detail": "usd is negative."}, "usd is negative."),
        (401, {}, "did not accept the token"),
        (403, {"detail": "operators only."}, "may not do that: operators only."),
        (403, b"<html>", "may not do that."),
        (404, {"detail": "There is no tenant x."}, "There is no tenant x."),
        (404, b"", "no such thing"),
        (409, {"title": "The price is in effect."}, "The price is in effect."),
        (418, b"\xff", "status 418"),
        (429, {}, "Too many requests"),
        (302, b"", "elsewhere"),
        (500, {"detail": "The book is closed."}, "The book is closed."),
        (503, b"", "Its log says more (request req_1)."),
        (200, b"<html>", "Is --admin-url the admin listener?"),
        (200, b"[" * 100_000, "Is --admin-url the admin listener?"),
    ),
)
def test_each_status_is_one_sentence(status: int, body: object, says: str) -> None:
    handler = answers(status, body, **{"x-request-id": "req_1", "location": "http://evil/"})
    with pytest.raises(Refusal) as refusal:
        server(handler).get("/x")
    assert says in refusal.value.message
    assert TOKEN not in refusal.value.message
    assert refusal.value.exit_code == 1


@pytest.mark.parametrize(
    ("error", "says"),
    (
        (httpx2.ConnectError("refused"), "No server answers at http://127.0.0.1:8081"),
        (httpx2.ReadTimeout("slow"), "did not answer in time"),
        (httpx2.RemoteProtocolError("odd"), "broke (RemoteProtocolError)"),
    ),
)
def test_each_broken_connection_is_one_sentence(error: httpx2.HTTPError, says: str) -> None:
    def handler(_: httpx2.Request) -> httpx2.Response:
        raise error

    with pytest.raises(Refusal) as refusal:
        server(handler).get("/x")
    assert says in refusal.value.message


@pytest.mark.parametrize("url", ("ftp://h", "h:80", "http://", "http://[", "http://h:x"))
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Refusal, match="not a server's address"):
        Server(url, TOKEN).get("/x")


def test_a_token_that_cannot_be_sent_is_refused() -> None:
    for token in ("a\nb", "ü", "a b", "a\x00"):
        with pytest.raises(Refusal, match="Copy it again"):
            Server("http://127.0.0.1:1", token).get("/x")


def test_nothing_is_answered_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.client.ANSWER_BYTES_MAX", 10)
    with pytest.raises(Refusal, match="larger"):
        server(answers(200, b"x" * 11)).get("/x")


def test_development_tokens_are_found_and_sent_nowhere_else(tmp_path: Path) -> None:
    state = known(tmp_path)
    assert connect(None, None, state).url == "http://127.0.0.1:2"
    assert connect("http://127.0.0.1:2/", None, state).token == TOKEN
    assert connect("http://h", "t", tmp_path / "absent").token == "t"
    with pytest.raises(Refusal, match="not sent elsewhere"):
        connect("http://elsewhere:2", None, state)
    with pytest.raises(Refusal, match="no token 'acme/alice'"):
        connect(None, None, state, name="acme/alice")


@pytest.mark.parametrize("raw", (b"", b"{", b"[]", b'{"tokens":1}'))
def test_a_damaged_dev_json_is_one_sentence(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "dev.json").write_bytes(raw)
    with pytest.raises(Refusal, match="damaged"):
        read_known(tmp_path, "x")


def test_no_server_known_says_how_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="lockgate serve"):
        read_known(tmp_path, "--token")
    (tmp_path / "dev.json").mkdir()
    with pytest.raises(Refusal, match="cannot be read"):
        read_known(tmp_path, "--token")


def test_foreign_text_cannot_drive_the_terminal() -> None:
    assert clean("a\x1b[2Jb\x07\x9bc") == "a�[2Jb��c"
    assert len(clean("x" * 10_000)) == 2001


def test_the_token_stays_out_of_representations() -> None:
    assert TOKEN not in repr(Server("http://h", TOKEN))
