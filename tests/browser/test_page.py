"""The example page in a real Chromium, against the real front and line on real sockets, across origins.

Source: API.md §3 (StreamStatus), §2 (cases 36, 38, 53, 57, 60).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from executor.contract import Submit
from executor.echo import EchoExecutor
from gateway.house import Timings
from policies.facts import Budget, Limits
from tests.browser.pages import Steps, Wire, chromium, page_server, picture
from tests.clients.serving import Serving, serving
from tests.gateway.inhouse import CHAT, PLAN, Exchange, chat_body
from tests.gateway.once_kit import charged, reservations, turns

pytestmark = pytest.mark.slow

TEXT = "Grüße, 👋🏽 Wien: süß & <b>klar</b>."
TOKENS = len(TEXT.encode())
LINGER_MS = 60_000
"""Longer than any test: what is free before that was given back, not waited for."""
expect.set_options(timeout=20_000)


def says(job: Submit) -> list[int]:
    return list(TEXT.encode())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with page_server() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(10_000)
    page = context.new_page()
    thrown: list[str] = []
    page.on("pageerror", lambda error: thrown.append(str(error)))
    yield page
    context.close()
    assert thrown == []


@dataclass
class Scene:
    served: Serving
    page: Page
    origin: str
    steps: Steps

    def ask(self, *, token: str | None = None, base_url: str | None = None, **fields: str) -> None:
        page = self.page
        page.goto(f"{self.origin}/example.html")
        token = token or self.served.home.tokens["acme/alice"]
        given = {"baseUrl": base_url or self.served.base_url, "token": token, "model": "echo", **fields}  # fmt: skip
        for name, value in given.items():
            page.fill(f"[name={name}]", value)
        page.click("#ask")

    def shows(self, status: str, text: str | None = None) -> None:
        expect(self.page.locator("#status")).to_have_text(status)
        if text is not None:
            expect(self.page.locator("#text")).to_have_text(text)

    def usage(self) -> Mapping[str, Any]:
        asked = self.served.call(lambda: self.served.home.operator().get("/v1/admin/usage", "by=tenant"))  # fmt: skip
        (row,) = asked.json()["rows"]
        return dict(row)

    def once(self, tokens: int) -> None:
        """One reservation, settled, of so many tokens; and nothing is left behind."""
        self.served.at_rest()
        (row,) = self.served.call(lambda: reservations(self.served.home))
        assert row["state"] == "SETTLED"
        usage = self.usage()
        assert (usage["requests"], usage["output_tokens"]) == (1, tokens)
        assert self.served.call(lambda: charged(self.served.home)) > 0


@contextmanager
def scene(
    page: Page, origin: str, tmp_path: Path, steps: Steps | None = None, **options: Any
) -> Iterator[Scene]:
    steps = steps or Steps()
    options.setdefault("echo", EchoExecutor(gate=steps, says=says))
    timings = Timings(linger_ms=options.pop("linger_ms", LINGER_MS))
    with serving(tmp_path, origins=[origin], timings=timings, **options) as served:
        yield Scene(served, page, origin, steps)


def test_the_place_the_text_and_the_end_are_shown(page: Page, origin: str, tmp_path: Path) -> None:
    steps = Steps()
    echo = EchoExecutor(gate=steps, says=says, seqs_max=1)
    with scene(page, origin, tmp_path, steps, echo=echo) as here:
        bob = here.served.home.caller("acme/bob")

        async def first() -> Exchange:
            return bob.start("POST", CHAT, chat_body(max_tokens=2))

        running = here.served.call(first)
        here.served.call(lambda: turns(lambda: echo.gauges.running == 1))
        here.ask()
        here.shows("Waiting: place 1.")
        picture(page, "queued")
        steps.allow(here.served, 2)
        here.served.call(running.end)
        here.shows("Reading 100 %.")
        steps.allow(here.served, len("Grüße, ".encode()))
        here.shows("Answering.", "Grüße, ")
        picture(page, "streaming")
        steps.allow(here.served)
        here.shows("Done.", TEXT)
        picture(page, "complete")
        here.served.at_rest()


def test_stop_frees_the_slot_and_what_was_generated_is_billed_once(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path) as here:
        here.steps.allow(here.served, 6)
        here.ask()
        here.shows("Answering.", "Grüß")
        page.click("#stop")
        here.shows("The answer was stopped.")
        picture(page, "stopped")

        async def freed() -> None:
            async with asyncio.timeout(10):
                while here.served.home.echo.open_turns:
                    await asyncio.sleep(0.005)

        here.served.call(freed)
        here.once(tokens=6)


@pytest.mark.parametrize(
    ("fields", "options", "status"),
    (
        ({}, {"plan": replace(PLAN, budget=Budget(30_000))}, "the budget is used up"),
        ({"max_tokens": "7"}, {}, "the longest answer that was asked for"),
        ({"max_tokens": "4000"}, {"context": 96}, "the model has no room for more"),
    ),
    ids=("token_budget", "max_tokens", "context"),
)
def test_a_limit_says_which(
    page: Page, origin: str, tmp_path: Path, fields: Any, options: Any, status: str
) -> None:
    def long(job: Submit) -> list[int]:
        return list(b"on and on " * 400)

    options = dict(options)
    options["echo"] = EchoExecutor(says=long, context_tokens=options.pop("context", 4096))
    with scene(page, origin, tmp_path, **options) as here:
        here.ask(**fields)
        here.shows(f"Ended here: {status}.")
        assert "on and on"[:7] in page.inner_text("#text")
        picture(page, f"limited-{status.split()[1]}")
        here.served.at_rest()


def test_a_spent_budget_is_a_limit_before_the_first_word(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path, plan=replace(PLAN, budget=Budget(1_000))) as here:
        here.ask()
        here.shows("Ended here: the budget is used up.", "")


def test_an_executor_that_dies_in_mid_stream_is_a_failure_and_asking_again_works(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path) as here:
        here.steps.allow(here.served, 4)
        here.ask()
        here.shows("Answering.", "Grü")

        async def die() -> None:
            here.served.home.echo.fail()

        async def rise() -> None:
            here.served.home.echo.recover()

        here.served.call(die)
        here.shows("The model stopped while this answer was running. Try again.", "Grü")
        assert page.get_attribute("#status", "data-state") == "failed"
        picture(page, "failed")
        here.served.call(rise)
        here.steps.allow(here.served)
        page.click("text=Ask again")
        here.shows("Done.", TEXT)
        here.served.at_rest()
        rows = here.served.call(lambda: reservations(here.served.home))
        assert sorted(row["charge"] > 0 for row in rows) == [False, True], "our fault is free"


def test_an_executor_that_dies_before_the_first_word_is_asked_again_by_the_page_itself(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path) as here:
        here.ask()
        here.shows("Reading 100 %.")

        async def die() -> None:
            here.served.home.echo.fail()
            here.served.home.echo.recover()

        here.served.call(die)
        here.steps.allow(here.served)
        here.shows("Done.", TEXT)
        here.served.at_rest()
        assert here.usage()["output_tokens"] == TOKENS + 1  # and the one that ends it


def test_a_cut_connection_is_taken_up_without_a_word_twice_and_billed_once(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path) as here, Wire.to(here.served) as wire:
        here.ask(base_url=wire.base_url)
        sent = 0
        for upto in ("Grü", "Grüße, ", "Grüße, 👋🏽 W"):
            here.steps.allow(here.served, len(upto.encode()) - sent)
            sent = len(upto.encode())
            here.shows("Answering.", upto)
            before = wire.connections
            wire.cut()
            wire.opened(before)
        picture(page, "taken-up")
        here.steps.allow(here.served)
        here.shows("Done.", TEXT)
        assert wire.connections > 3
        here.once(tokens=TOKENS + 1)


def test_what_is_said_while_the_network_is_away_is_heard_afterwards(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path) as here, Wire.to(here.served) as wire:
        here.steps.allow(here.served, 4)
        here.ask(base_url=wire.base_url)
        here.shows("Answering.", "Grü")
        before = wire.connections
        wire.cut(refuse=True)
        here.steps.allow(here.served)
        wire.opened(before)
        wire.cut()
        here.shows("Done.", TEXT)
        here.once(tokens=TOKENS + 1)


def test_a_page_that_is_loaded_anew_finds_its_answer(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path) as here:
        here.steps.allow(here.served, len("Grüße".encode()))
        here.ask()
        here.shows("Answering.", "Grüße")
        page.reload()
        here.shows("Answering.", "Grüße")
        here.steps.allow(here.served)
        here.shows("Done.", TEXT)
        page.reload()
        here.shows("")
        here.once(tokens=TOKENS + 1)


def test_who_closes_the_page_gives_the_slot_back_by_and_by(
    page: Page, origin: str, tmp_path: Path
) -> None:
    with scene(page, origin, tmp_path, linger_ms=200) as here:
        here.steps.allow(here.served, 3)
        here.ask()
        here.shows("Answering.", "Gr")
        page.close()
        here.served.at_rest()
        here.once(tokens=3)


def test_a_refusal_can_be_read_across_origins(page: Page, origin: str, tmp_path: Path) -> None:
    plan = replace(PLAN, limits=Limits(rpm=1))
    with scene(page, origin, tmp_path, plan=plan) as here:
        here.steps.allow(here.served)
        here.ask(token="nobody")
        here.shows("The credential was not accepted. Send a current token or key as 'Authorization: Bearer …'.")  # fmt: skip
        here.ask(model="other")
        here.shows("The model does not exist or you may not use it. GET /v1/models lists yours.")
        here.ask()
        here.shows("Done.", TEXT)
        asked = page.evaluate(
            """async ([url, token]) => {
              const answer = await fetch(`${url}/chat/completions`, {
                method: "POST",
                headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
                body: JSON.stringify({ model: "echo", messages: [{ role: "user", content: "x" }] }),
              });
              const { error } = await answer.json();
              return [answer.status, error.code, Number(answer.headers.get("retry-after")) > 0];
            }""",
            [here.served.base_url, here.served.home.tokens["acme/alice"]],
        )
        assert asked == [429, "rate_limit_exceeded", True]
        preflights = [status for status, _ in here.served.take_attempts() if status == 204]
        assert len(preflights) >= 1


def test_a_page_of_another_origin_reads_nothing(page: Page, origin: str, tmp_path: Path) -> None:
    with page_server() as stranger, scene(page, stranger, tmp_path) as here:
        here.origin = origin  # not the one that is listed
        here.steps.allow(here.served)
        page.goto(f"{origin}/example.html")
        read = page.evaluate(
            """async (url) => {
              const { chat } = await import("./lockgate-stream.js");
              const body = { model: "echo", messages: [] };
              return chat({ baseUrl: url, token: "t", body, patienceMs: 200 }).done;
            }""",
            here.served.base_url,
        )
        assert (read["state"], read["code"]) == ("failed", "connection_lost")
        assert {status for status, _ in here.served.take_attempts()} <= {405, 401, 204}
        assert here.served.call(lambda: reservations(here.served.home)) == []
