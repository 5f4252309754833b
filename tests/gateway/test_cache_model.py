"""With a real model behind the house: what is listed is there, and what was purged is gone while others go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.gateway.inhouse import MODEL, Caller, Inhouse
from tests.gateway.keeping import CACHE, PURGE, WHY, read
from tests.gateway.with_model import with_model

pytestmark = pytest.mark.slow

QUESTION = "Count the boats: " + ", ".join(f"boat {n} waits at gate {n % 7}" for n in range(40))


async def cached(caller: Caller) -> int:
    answer = await caller.chat(QUESTION, temperature=0, max_tokens=4)
    assert answer.status == 200, answer.body
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def kept(home: Inhouse) -> dict[str, int]:
    rows = (await home.operator().get(CACHE)).json()["kept"]
    return {each["tenant"]: each["blocks"] for each in rows}


def test_c18_a_tenant_is_purged_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with with_model(tmp_path) as home:
            alice, bob = home.caller("acme/alice"), home.caller("acme/bob")
            carol = home.caller("globex/carol")
            for each in (alice, bob, carol):
                assert await cached(each) == 0
            found = await cached(alice)
            assert found > 256
            before = await kept(home)
            assert before.keys() == {"acme", "globex"}
            assert "boat" not in json.dumps((await home.operator().get(CACHE, "by=label")).json())
            # One of them alone.
            admin = home.operator("acme/admin")
            one = await admin.post(PURGE, {"tenant": "acme", "user": "bob", **WHY})
            assert read(home, one).purged.is_complete
            assert 0 < one.json()["blocks"] < before["acme"]
            assert await cached(alice) == found
            # All of the tenant, while it and another are served.
            streams = [
                each.start("POST", "/v1/chat/completions", body)
                for each in (alice, bob, carol)
                for body in [_stream()]
            ]
            for stream in streams:
                await stream.until(lambda seen: b"delta" in b"".join(seen.parts))
            purged = await admin.post(PURGE, {"tenant": "acme", **WHY})
            assert purged.status == 200, purged.body
            record = read(home, purged)
            assert record.purged.blocks == record.purged.blocks_read_zero > 0
            assert record.purged.is_complete
            ended = [await stream.end() for stream in streams]
            assert ended[2].events()[-1] == "[DONE]"
            assert "error" not in ended[2].events()[-2]
            assert (await kept(home)).keys() == {"globex"}
            assert await cached(carol) == found
            assert await cached(alice) == 0

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # `-P`: this tree's executor
    asyncio.run(story())


def _stream() -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "max_tokens": 48,
        "temperature": 0,
    }
