"""What a client's `Idempotency-Key` becomes on its way to the executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Cause, Ended, Submit
from executor.echo import EchoExecutor
from gateway.errors import ApiError
from gateway.idempotency import Digests, canonical, client_key, retry_key
from policies.facts import Credential, CredentialKind, Principal
from policies.scope.encoding import enc
from tests.gateway.inhouse import MODEL, Inhouse, inhouse

KEY = "b0d5a1f2-7a52-4c55-8f2e-2f3c3a0d1a11"


class Seen:
    """Everything that was submitted."""

    def __init__(self, answer: Callable[[Submit], Ended | None] = lambda _: None) -> None:
        self.jobs: list[Submit] = []
        self.answer = answer

    def __call__(self, job: Submit) -> Ended | None:
        self.jobs.append(job)
        return self.answer(job)

    @property
    def keys(self) -> list[bytes | None]:
        return [job.retry_key for job in self.jobs]


@pytest.mark.parametrize("value", (b"", b"a b", b" a", b"a\x7f", "ä".encode(), b"x" * 256, b"a\tb"))
def test_a_key_that_is_none_is_refused_by_its_rule(value: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        client_key([(b"idempotency-key", value)])
    assert (refused.value.status, refused.value.code) == (400, "invalid_idempotency_key")
    assert "1 to 255 visible ASCII" in refused.value.message


def test_a_key_is_optional_and_may_be_long() -> None:
    assert client_key([(b"host", b"x")]) is None
    assert client_key([(b"idempotency-key", b"~" * 255)]) == "~" * 255


def test_a_key_is_of_all_that_it_belongs_to() -> None:
    alice = Principal("acme", None, "alice", "idp", Credential(CredentialKind.TOKEN, None))

    def of(parts: tuple[str, ...]) -> bytes:
        return "\0".join(parts).encode()

    mine = retry_key(of, alice, "chat", KEY)
    others = [
        retry_key(of, replace(alice, tenant="globex"), "chat", KEY),
        retry_key(of, replace(alice, issuer="other"), "chat", KEY),
        retry_key(of, replace(alice, user="bob"), "chat", KEY),
        retry_key(of, alice, "completions", KEY),
        retry_key(of, alice, "chat", KEY + "x"),
    ]
    assert len({mine, *others}) == 6
    assert retry_key(of, alice, "chat", None) is None


def test_a_key_that_is_kept_is_of_all_that_it_belongs_to() -> None:
    digests = Digests(lambda parts: enc(tuple(parts)), lambda parts: enc(tuple(parts)))
    alice = Principal("acme", None, "alice", "idp", Credential(CredentialKind.TOKEN, "jti-1"))
    mine = digests.key(alice, "POST chat", KEY)
    by_key = replace(alice, credential=Credential(CredentialKind.KEY, "k1"))
    others = [
        digests.key(replace(alice, tenant="globex"), "POST chat", KEY),
        digests.key(replace(alice, tenant=None), "POST chat", KEY),
        digests.key(replace(alice, tenant=""), "POST chat", KEY),
        digests.key(replace(alice, issuer="other"), "POST chat", KEY),
        digests.key(replace(alice, user="bob"), "POST chat", KEY),
        digests.key(by_key, "POST chat", KEY),
        digests.key(
            replace(by_key, credential=Credential(CredentialKind.KEY, "k2")), "POST chat", KEY
        ),
        digests.key(alice, "PUT chat", KEY),
        digests.key(alice, "POST chat", KEY + "x"),
    ]
    assert len({mine, *others}) == 10
    renewed = replace(alice, credential=Credential(CredentialKind.TOKEN, "jti-2"))
    assert digests.key(renewed, "POST chat", KEY) == mine, "a new token is no new person"
    bodies = {digests.body(d, target, body) for d in (mine, others[0]) for target in (b"/a?", b"/b?") for body in (b"x", b"y")}  # fmt: skip
    assert len(bodies) == 8


@pytest.mark.parametrize(
    ("one", "other", "same"),
    (
        (b'{"a":1,"b":[1,2]}', b'{ "b":[1,2], "a":1 }', True),
        (b'{"a":1}', b'{"a":2}', False),
        (b'{"a":[1,2]}', b'{"a":[2,1]}', False),
        (b'{"a":1}', b'{"a":"1"}', False),
        (b'{"a":1}', b'{"a":true}', False),
        (b'{"a":null}', b"{}", False),
        (b'{"a"', b'{"a" ', False),
        (b"", b"{}", False),
    ),
)
def test_a_body_is_what_it_says(one: bytes, other: bytes, same: bool) -> None:
    async def both() -> list[bytes]:
        return [(await canonical(each))[0] for each in (one, other)]

    first, second = asyncio.run(both())
    assert (first == second) is same


def test_a_stream_is_asked_for_by_a_word_alone() -> None:
    async def asks(body: bytes) -> bool:
        return (await canonical(body))[1]

    bodies = (
        b'{"stream":true}',
        b'{"stream":1}',
        b'{"stream":"true"}',
        b"[true]",
        b'{"stream":tru',
    )
    assert [asyncio.run(asks(each)) for each in bodies] == [True, False, False, False, False]
    large = b'{"stream":true,"x":"' + b"y" * 100_000 + b'"}'
    assert asyncio.run(asks(large))


def turned_away(job: Submit) -> Ended | None:
    return Ended(request=0, cause=Cause.BACKLOG, retry_ms=1000)


def test_equal_keys_are_one_for_one_principal_and_endpoint_alone(tmp_path: Path) -> None:
    """Of who is turned away and comes again, since only then a key is heard by the executor twice."""
    seen = Seen(turned_away)

    async def story(home: Inhouse) -> None:
        ask: dict[str, Any] = {"model": MODEL, "prompt": "hello"}
        alice = home.caller().with_headers(idempotency_key=KEY)
        other = home.caller().with_headers(idempotency_key=KEY + "x")
        bob = home.caller("acme/bob").with_headers(idempotency_key=KEY)
        carol = home.caller("globex/carol").with_headers(idempotency_key=KEY)
        for answer in (
            await alice.chat(),
            await alice.chat("another body", stream=True),
            await other.chat(),
            await bob.chat(),
            await carol.chat(),
            await alice.post("/v1/completions", ask),
            await home.caller().chat(),
        ):
            assert answer.status == 429
        first, again, *others = seen.keys
        assert first == again, "nothing was done by it, so what it says may be another now"
        assert others.pop() is None, "without a key there is none"
        assert len({first, *others}) == 5
        assert all(each is not None and len(each) == 16 for each in (first, *others))
        assert not any(KEY.encode() in (each or b"") for each in seen.keys)

    asyncio.run(lived(tmp_path, story, seen))


def test_of_several_choices_the_first_has_the_key(tmp_path: Path) -> None:
    seen = Seen()

    async def story(home: Inhouse) -> None:
        assert (await home.caller().with_headers(idempotency_key=KEY).chat(n=3)).status == 200
        assert [key is not None for key in seen.keys] == [True, False, False]

    asyncio.run(lived(tmp_path, story, seen))


def test_a_bad_key_is_refused_before_anything_is_taken(tmp_path: Path) -> None:
    seen = Seen()

    async def story(home: Inhouse) -> None:
        answer = await home.caller().with_headers(idempotency_key="two words").chat()
        assert (answer.status, answer.error["code"]) == (400, "invalid_idempotency_key")
        assert not seen.jobs

    asyncio.run(lived(tmp_path, story, seen))


async def lived(tmp_path: Path, story: Any, seen: Seen) -> None:
    async with inhouse(tmp_path, echo=EchoExecutor(refuses=seen)) as home:
        await story(home)
        await home.at_rest()
