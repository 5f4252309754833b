"""What is registered is computed beforehand: once an executor and version, pinned, charged as cache write."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from executor.contract import Cause, Submit
from executor.echo import EchoExecutor
from gateway.warming import Warming
from tests.gateway.inhouse import Inhouse
from tests.gateway.registered_kit import DOCS, TMPLS, ask, do, register, said, sharing
from tests.gateway.test_line import lived


class Recording(EchoExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.submits: list[Submit] = []

    def turn(self, job: Submit):  # type: ignore[no-untyped-def] # noqa: ANN201 — as its base's
        self.submits.append(job)
        return super().turn(job)


def test_each_text_is_computed_once_a_version_and_again_for_another_executor(
    tmp_path: Path,
) -> None:
    echo = Recording()

    async def story(home: Inhouse) -> None:
        numbers = count(1)
        warming = Warming(lambda: f"req_warm{next(numbers)}")
        alice, admin = home.caller(), home.caller("acme/admin")
        id_ = await register(alice, "LEASE " * 20, **sharing("bob"))
        await admin.post(TMPLS, {"text": "BRIEF " * 20 + "\nFor {{who}}."})
        assert await warming.round(home.house) == 2
        assert await warming.round(home.house) == 0
        assert all(each.warm and each.workload == "batch" for each in echo.submits)
        for each in echo.submits:
            assert each.caching is not None
            assert each.caching.scopes[-1].until == len(each.prompt)
            assert all(scope.pinned for scope in each.caching.scopes)
        # Who reads it begins with the very tokens, under the very label.
        said(await ask(home.caller("acme/bob"), id_))
        warm, read = echo.submits[0], echo.submits[-1]
        assert read.prompt[: len(warm.prompt)] == warm.prompt
        assert warm.caching is not None
        assert read.caching is not None
        assert read.caching.scopes[0] == warm.caching.scopes[0]
        assert not read.warm
        used = await home.operator().get("/v1/admin/usage", "by=user&tenant=acme")
        rows = {row["user"]: row for row in used.json()["rows"]}
        assert rows["alice"]["cache_write_tokens"] == len(warm.prompt)
        assert rows["alice"]["input_tokens"] == 0
        await do(alice, "PUT", f"{DOCS}/{id_}/acl", {})
        assert await warming.round(home.house) == 1  # under its new version
        assert echo.submits[-1].caching != warm.caching
        await do(alice, "DELETE", f"{DOCS}/{id_}")
        assert await warming.round(home.house) == 0
        echo.fail()
        assert await warming.round(home.house) == 0
        echo.recover()

    lived(tmp_path, story, echo=echo)


class Full(Recording):
    """Keeps nothing of what is registered."""

    def _end(self, job, cause, detail="", **told):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN003, ANN202 — as its base's
        super()._end(job, Cause.QUOTA if job.job.warm else cause, detail, **told)


def test_what_finds_no_room_costs_nothing_and_waits_for_room_of_its_own_tenant(
    tmp_path: Path,
) -> None:
    echo = Full()

    async def story(home: Inhouse) -> None:
        numbers = count(1)
        warming = Warming(lambda: f"req_warm{next(numbers)}")
        alice, carol = home.caller(), home.caller("globex/carol")
        await register(alice, "LEASE " * 20)
        other = await register(alice, "OTHER " * 20)
        theirs = await register(carol, "THEIRS " * 20)
        assert await warming.round(home.house) == 0
        asked = len(echo.submits)
        assert asked == 3
        used = await home.operator().get("/v1/admin/usage", "by=user&tenant=acme")
        assert not any(row["cache_write_tokens"] for row in used.json()["rows"])
        await do(carol, "DELETE", f"{DOCS}/{theirs}")
        await warming.round(home.house)
        assert len(echo.submits) == asked, "another tenant's room is not theirs"
        await do(alice, "DELETE", f"{DOCS}/{other}")
        await warming.round(home.house)
        assert len(echo.submits) == asked + 1

    lived(tmp_path, story, echo=echo)
