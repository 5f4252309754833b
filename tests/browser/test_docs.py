"""`/docs` in a real Chromium: it reads the document under its own policy, and its lines for a shell are right."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gateway.openapi.document import document
from gateway.openapi.operations import OPERATIONS
from tests.browser.pages import chromium, picture
from tests.clients.serving import Serving, serving
from tests.gateway.inhouse import MODEL

pytestmark = pytest.mark.slow
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("docs"), docs=True) as here:
        yield here


@pytest.fixture(scope="module")
def page(site: Serving) -> Iterator[Page]:
    with chromium() as browser:
        page = browser.new_page()
        told: list[str] = []
        asked: list[str] = []
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("console", lambda message: told.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site.base_url.removesuffix("/v1") + "/docs")
        expect(page.locator("#operations details").first).to_be_visible()
        yield page
        assert [line for line in told if "favicon" not in line] == []
        here = site.base_url.removesuffix("/v1")
        assert {url.removeprefix(here) for url in asked} <= {
            *("/docs", "/docs/docs.js", "/docs/docs.css", "/openapi.json", "/favicon.ico"),
        }


def test_every_operation_and_schema_is_shown(page: Page) -> None:
    shown = page.locator("#operations details").evaluate_all("all => all.map(each => each.id)")
    assert sorted(shown) == sorted(each.id for each in OPERATIONS)
    expect(page.locator("#schemas details")).to_have_count(len(document()["components"]["schemas"]))
    expect(page.locator("#state")).to_have_count(0)
    page.locator("#createMessage summary").click()
    expect(page.locator("#createMessage table").first).to_contain_text("max_tokens (required)")
    assert "`" not in (page.locator("main").text_content() or "")
    picture(page, "docs")


def test_a_link_opens_what_it_names(page: Page) -> None:
    page.locator("#retrieveModel summary").click()
    page.locator("#retrieveModel a", has_text="MessagesModel").first.click()
    expect(page.locator("#schema-MessagesModel td").first).to_be_visible()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_line_for_a_shell_asks_the_server(page: Page, site: Serving, tmp_path: Path) -> None:
    """As it stands there, but for the name of the model."""
    page.locator("#server").fill(site.base_url.removesuffix("/v1") + "/")
    for id_ in ("createChatCompletion", "createMessage", "tokenize", "listModels", "me", "health"):
        line = page.locator(f"#{id_} pre").text_content() or ""
        line = line.replace('"default"', f'"{MODEL}"')
        told = subprocess.run(
            ["sh", "-c", line + " -sS -o /dev/null -w '%{http_code}'"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env={"LOCKGATE_TOKEN": site.home.tokens["acme/alice"], "PATH": "/usr/bin:/bin"},
        )
        assert (told.stdout, told.stderr) == ("200", ""), line
