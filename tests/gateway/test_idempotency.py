"""What a client's `Idempotency-Key` becomes on its way to the executor."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Submit
from executor.echo import EchoExecutor
from gateway.errors import ApiError
from gateway.idempotency import client_key, retry_key
from policies.facts import Credential, CredentialKind, Principal
from tests.gateway.inhouse import MODEL, Inhouse, inhouse

KEY = "b0d5a1f2-7a52-4c55-8f2e-2f3c3a0d1a11"


class Seen:
    """Everything that was submitted."""

    def __init__(self) -> None:
        self.jobs: list[Submit] = []

    def __call__(self, job: Submit) -> None:
        self.jobs.append(job)

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


def test_equal_keys_are_one_for_one_principal_and_endpoint_alone(tmp_path: Path) -> None:
    seen = Seen()

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
            assert answer.status == 200
        first, again, *others = seen.keys
        assert first == again, "what a client says of one is not looked at yet"
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
