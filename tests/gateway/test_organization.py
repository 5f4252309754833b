"""OpenAI's costs and usage: the official client reads them, and they sum to the ledger."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from openai.types.admin.organization import UsageCompletionsResponse, UsageCostsResponse

from policies.facts import Price
from tests.gateway.inhouse import Inhouse
from tests.gateway.test_line import lived

COSTS, USAGE = "/v1/organization/costs", "/v1/organization/usage/completions"
DAY_S = 86_400
ODD = Price("echo@odd", "echo", 0, 333_333_333, 77_777_777, 1_234_567_891, 999_999_999)


async def busy(home: Inhouse) -> None:
    """Two days: three requests of acme on the first, one on the second, one of globex."""
    made = await home.operator().post(
        "/v1/admin/keys",
        {"tenant": "acme", "user": "svc", "project": "p", "service_class": "batch"},
    )
    service = home.caller(None)
    service = type(service)(home.public, made.json()["secret"])
    for caller in (home.caller(), home.caller("acme/bob"), service, home.caller("globex/carol")):
        assert (await caller.chat("hello")).status == 200
    home.time.ahead_ms = DAY_S * 1000
    assert (await home.caller().chat("hi")).status == 200


async def asked(home: Inhouse, path: str, query: str, who: str = "operator") -> Any:
    start = home.house.clock.wall_ms() // 1000 - 2 * DAY_S
    answer = await home.operator(who).get(path, f"start_time={start}&{query}".rstrip("&"))
    assert answer.status == 200, answer.body
    return json.loads(answer.body, parse_float=Decimal)


def results(page: Any) -> list[dict[str, Any]]:
    return [result for bucket in page["data"] for result in bucket["results"]]


def test_every_grouping_sums_to_the_ledger(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await busy(home)
        total = Decimal(await home.house.book.spend(from_ms=0, to_ms=2**62)).scaleb(-9)
        for by in ("", "project_id", "user_id", "line_item", "api_key_id", "api_source",
                   "project_id,user_id,line_item,api_key_id"):  # fmt: skip
            page = await asked(home, COSTS, f"group_by={by}" if by else "")
            assert sum(each["amount"]["value"] for each in results(page)) == total, by
            assert len(page["data"]) == 3
            assert {each["end_time"] - each["start_time"] for each in page["data"]} == {DAY_S}
            assert [len(each["results"]) > 0 for each in page["data"]] == [False, True, True]
        lines = await asked(home, COSTS, "group_by=line_item")
        assert {each["line_item"] for each in results(lines)} == {
            "echo, input_tokens",
            "echo, output_tokens",
        }
        report = (await home.operator().get("/v1/admin/usage", "by=tenant")).json()["total"]
        for width in ("1m", "1h", "1d"):
            for by in ("", "project_id", "model", "batch", "service_tier", "user_id,api_key_id"):
                query = f"bucket_width={width}&limit={31 if width == '1d' else 168}"
                page = await asked(home, USAGE, query + (f"&group_by={by}" if by else ""))
                found = results(page)
                if width == "1m":
                    continue  # a page of 168 minutes ends before it
                assert sum(each["num_model_requests"] for each in found) == report["requests"]
                assert sum(each["output_tokens"] for each in found) == report["output_tokens"]
                assert sum(each["input_tokens"] for each in found) == report["input_tokens"]
        batch = results(await asked(home, USAGE, "group_by[]=batch"))
        assert {each["batch"]: each["num_model_requests"] for each in batch[:2]} == {
            True: 1, False: 3,
        }  # fmt: skip
        for flag, count in (("true", 1), ("false", 4)):
            found = results(await asked(home, USAGE, f"batch={flag}"))
            assert sum(each["num_model_requests"] for each in found) == count

    lived(tmp_path, story, prices=(ODD,))


def test_the_official_client_reads_them(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await busy(home)
        every = "group_by[]=project_id&group_by[]=user_id&group_by[]=api_key_id"
        raw = await asked(home, COSTS, every + "&group_by[]=line_item")
        costs = UsageCostsResponse.model_validate_json(json.dumps(raw, default=float), strict=True)
        result = costs.data[1].results[0]
        assert result.object == "organization.costs.result"
        assert result.amount is not None
        assert (result.amount.currency, result.quantity_unit) == ("usd", "tokens")
        assert result.quantity
        raw = await asked(home, USAGE, every + "&group_by[]=model&group_by[]=batch")
        usage = UsageCompletionsResponse.model_validate_json(json.dumps(raw), strict=True)
        found = usage.data[1].results[0]
        assert found.object == "organization.usage.completions.result"
        assert (found.model, found.batch) == ("echo", False)
        assert found.input_tokens > 0

    lived(tmp_path, story)


def test_pages_follow_each_other(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await busy(home)
        start = home.house.clock.wall_ms() // 1000 - 40 * DAY_S
        found, page, query = [], "", f"start_time={start}&limit=9"
        while True:
            answer = (await home.operator().get(COSTS, query + page)).json()
            assert len(answer["data"]) <= 9
            found += answer["data"]
            if not answer["has_more"]:
                assert answer["next_page"] is None
                break
            page = "&page=" + answer["next_page"]
        starts = [each["start_time"] for each in found]
        assert starts == list(range(starts[0], starts[-1] + 1, DAY_S))
        assert len(starts) == 41
        total = sum(each["amount"]["value"] for bucket in found for each in bucket["results"])
        assert total > 0

    lived(tmp_path, story)


def test_a_tenant_sees_itself_whatever_it_asks_for(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        await busy(home)
        for role in ("acme/finance", "acme/admin"):
            found = results(await asked(home, USAGE, "group_by=user_id", role))
            assert {each["user_id"] for each in found} == {"alice", "bob", "svc"}
            for ids in ("user_ids=carol", "user_ids=nobody", "project_ids[]=absent"):
                assert results(await asked(home, USAGE, ids, role)) == []
            assert (
                results(await asked(home, USAGE, "user_ids=carol&user_ids=bob", role))[0][
                    "num_model_requests"
                ]
                == 1
            )
        found = results(await asked(home, USAGE, "tenant=globex"))
        assert sum(each["num_model_requests"] for each in found) == 1
        refused = await home.operator("acme/finance").get(USAGE, "start_time=0&tenant=globex")
        assert refused.status == 403

    lived(tmp_path, story)


@pytest.mark.parametrize(
    ("query", "param"),
    (
        ("", "start_time"),
        ("start_time=x", "start_time"),
        ("start_time=-1", "start_time"),
        ("start_time=99999999999999", "start_time"),
        ("start_time=5&end_time=5", "end_time"),
        ("start_time=5&bucket_width=1h", "bucket_width"),
        ("start_time=5&limit=0", "limit"),
        ("start_time=5&limit=181", "limit"),
        ("start_time=5&group_by=model", "group_by"),
        ("start_time=5&group_by=project_id&group_by[]=project_id", "group_by"),
        ("start_time=5&page=x", "page"),
        ("start_time=5&page=WzFd", "page"),
        ("start_time=5&page=W251bGxd", "page"),
        ("start_time=5&start_time=6", "start_time"),
        ("start_time=5&api_key_id=k", "api_key_id"),
        ("start_time=5&user_ids=u", "user_ids"),
    ),
)
def test_what_is_wrong_is_named(tmp_path: Path, query: str, param: str) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.operator().get(COSTS, query)
        assert answer.status == 400, answer.body
        assert answer.json()["param"] == param
        assert (await home.operator().get(USAGE, "start_time=1&batch=maybe")).status == 400

    lived(tmp_path, story)
