"""What a clerk asks and is told: counts that overlap, names that are nobody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.inhouse import Inhouse
from tests.gateway.test_exports import command, some, wired
from tests.gateway.test_line import lived


def test_rows_that_share_requests_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(home: Inhouse) -> None:
        await some(home)
        to = wired(home, monkeypatch)
        for by, overlap in (("tenant", False), ("meter", True), ("day,price", True)):
            found = (await home.operator().get("/v1/admin/usage", f"by={by}")).json()
            assert found["requests_overlap"] is overlap
            assert found["total"]["requests"] == 3
            assert await command("usage", "report", "--by", by, *to) == 0
            assert ("the total counts it once" in capsys.readouterr().out) is overlap

    lived(tmp_path, story)
