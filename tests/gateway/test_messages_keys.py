"""Whose words /v1/messages repeats by an `Idempotency-Key`, and whose end user it is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Submit
from executor.echo import EchoExecutor
from gateway import runs
from gateway.api.messages.family import MESSAGES as FAMILY
from gateway.errors import invalid
from gateway.runs import Doing, Run
from gateway.tape import Tape
from tenants.idempotency import Claim
from tests.gateway.inhouse import MODEL, Inhouse
from tests.gateway.once_kit import keyed
from tests.gateway.test_line import lived
from tests.gateway.test_messages import MESSAGES, body, refused, said


def test_by_a_key_the_same_words_come_again(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for stream in (False, True):
            caller = keyed(home.caller(), f"key-{stream}")
            first = await caller.post(MESSAGES, body(stream=stream))
            again = await caller.post(MESSAGES, body(stream=stream))
            assert again.body == first.body
            assert again.headers["idempotent-replayed"] == "true"
            assert again.headers["request-id"] != first.headers["request-id"]
            other = await caller.post(MESSAGES, body("else", stream=stream))
            refused(other, 422, "invalid_request_error")

    lived(tmp_path, story)


def test_a_refusal_that_is_kept_is_in_these_words() -> None:
    """One that cost something, and that the same request would meet again."""

    async def run() -> None:
        why = invalid("no", param="max_tokens")
        doing = Doing(spent=True, refusal=FAMILY.refusal)
        claim = Claim(digest="d", body=b"b", tenant="acme", request_id="req_1", metered=True)
        decided: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        tape = Tape(bytes_max=9, linger_s=0)
        _, kept = runs._work(Run(claim, tape, stream=False, decided=decided, doing=doing), why)
        assert kept is not None
        told = json.loads(kept[2])
        assert (told["type"], told["request_id"]) == ("error", "req_1")
        assert told["error"]["param"] == "max_tokens"

    asyncio.run(run())


def test_work_by_a_key_knows_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words: dict[str | None, bytes] = {}
    work = runs._work

    def noted(run: Run, why: Exception | None) -> Any:
        words[run.doing.basis.model] = run.doing.refusal(invalid("no"), "req_1")
        return work(run, why)

    async def story(home: Inhouse) -> None:
        assert (await keyed(home.caller()).post(MESSAGES, body())).status == 200
        assert json.loads(words[MODEL])["type"] == "error"
        assert (await keyed(home.caller()).post(MESSAGES + "/count_tokens", body())).status == 200
        assert json.loads(words[MODEL])["request_id"] == "req_1"
        assert (await keyed(home.caller()).chat("x")).status == 200
        assert set(json.loads(words[MODEL])) == {"error"}

    monkeypatch.setattr(runs, "_work", noted)
    lived(tmp_path, story)


def test_an_end_user_is_the_one_of_a_chat(tmp_path: Path) -> None:
    """In the queue and in the cache: whoever serves many by one credential keeps them apart."""
    heard: list[Submit] = []

    def says(job: Submit) -> tuple[int, ...]:
        heard.append(job)
        return (ord("x"),)

    async def story(home: Inhouse) -> None:
        await said(home.caller(), metadata={"user_id": "u"})
        await home.caller().chat("hello", user="u", max_tokens=64)
        await said(home.caller(), metadata={"user_id": None})
        mine, alike, nobody = heard
        assert mine.prompt == alike.prompt == nobody.prompt
        assert mine.share == alike.share != nobody.share
        assert mine.caching is not None
        assert alike.caching is not None
        assert nobody.caching is not None
        assert mine.caching.scopes == alike.caching.scopes != nobody.caching.scopes

    lived(tmp_path, story, echo=EchoExecutor(says=says))
