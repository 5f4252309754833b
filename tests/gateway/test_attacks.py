"""What an attacker tried against a whole house: other tenants' facts, secrets in places that keep
them, authority withdrawn at awkward moments, requests that cost more than they pay for.

Each test says who attacks (SECURITY.md §1): M a malicious tenant, C a curious colleague, T a thief.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import logs
from gateway.api.doorway import SENDING_MAX
from gateway.text import stops
from policies.facts import Role
from security.dev_issuer import open_dev_issuer
from tests.gateway.inhouse import CHAT, Answered, Caller, Inhouse, chat_body, inhouse


def attacked(folder: Path, story: Callable[[Inhouse], Awaitable[None]], **options: Any) -> None:
    """Run `story` in a house of its own, and find the house unharmed."""

    async def run() -> None:
        async with inhouse(folder, **options) as home:
            before = len(asyncio.all_tasks())
            async with asyncio.timeout(30):
                await story(home)
            await home.at_rest()
            assert len(asyncio.all_tasks()) == before
            assert [entry for entry in home.logged if entry["event"] == "failed"] == []

    asyncio.run(run())


def token(home: Inhouse, **claims: Any) -> str:
    """A genuine token of the development issuer with whatever claims the attacker could have."""
    issuer = open_dev_issuer(home.folder)
    now_s = home.time.wall_ms() // 1000
    facts: dict[str, Any] = {
        "tenant": "acme",
        "user": "mallory",
        "now_s": now_s,
        "ttl_s": 600,
        "jti": "jti-1",
    }
    return issuer.mint(**facts | claims)


def administrator(home: Inhouse, name: str) -> Caller:
    return home.operator(f"{name}/admin")


async def new_key(home: Inhouse, tenant: str, **fields: object) -> dict[str, Any]:
    body = {"tenant": tenant, "user": "svc", **fields}
    made = await administrator(home, tenant).post("/v1/admin/keys", body)
    assert made.status == 200, made.body
    return dict(made.json())


def detail(answer: Answered) -> str:
    return str(answer.json()["detail"])


# Other tenants' facts.


def test_m_a_budget_on_anothers_key_shows_nothing_of_it(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        theirs = await new_key(home, "globex")
        assert (await Caller(home.public, theirs["secret"]).chat("hello")).status == 200
        mallory = administrator(home, "acme")
        ask = {"tenant": "acme", "scope": "key", "usd": "1"}
        foreign = await mallory.post("/v1/admin/budgets", {**ask, "id": theirs["id"]})
        absent = await mallory.post("/v1/admin/budgets", {**ask, "id": "b" * 16})
        assert (foreign.status, absent.status) == (404, 404)
        assert foreign.body == absent.body
        shown = (await mallory.get("/v1/admin/budgets")).json()["budgets"]
        assert [row["scope"] for row in shown] == ["tenant"]
        own = await new_key(home, "acme")
        assert (await mallory.post("/v1/admin/budgets", {**ask, "id": own["id"]})).status == 200

    attacked(tmp_path, story)


def test_m_a_tenant_that_is_not_configured_hears_no_names(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        stranger = Caller(home.admin, token(home, tenant="ghost", roles=[Role.TENANT_ADMIN]))
        asked = [
            stranger.get("/v1/admin/budgets"),
            stranger.get("/v1/admin/keys"),
            stranger.get("/v1/admin/usage"),
            stranger.get("/v1/admin/check", "tenant=ghost"),
            stranger.post("/v1/admin/keys", {"tenant": "ghost", "user": "x"}),
            stranger.post(
                "/v1/admin/budgets", {"tenant": "ghost", "scope": "user", "id": "x", "usd": "1"}
            ),
        ]
        for asking in asked:
            answer = await asking
            assert b"globex" not in answer.body
            assert b"acme" not in answer.body

    attacked(tmp_path, story)


# Secrets in places that keep them.


def test_t_a_key_named_by_its_secret_is_written_nowhere(tmp_path: Path) -> None:
    """A person pastes the whole key where its id belongs."""

    async def story(home: Inhouse) -> None:
        made = await new_key(home, "acme")
        secret = made["secret"]
        mallory = administrator(home, "acme")
        told = [
            await mallory.post(f"/v1/admin/keys/{secret}/revoke", {}),
            await mallory.post(f"/v1/admin/keys/{secret}/rotate", {}),
            await mallory.post("/v1/admin/tokens/revoke", {"token_id": secret}),
            await mallory.post("/v1/admin/tokens/revoke", {"issuer": "x", "subject": secret}),
            await mallory.post(
                "/v1/admin/budgets",
                {"tenant": "acme", "scope": "user", "id": secret, "usd": "1"},
            ),
            await mallory.get(f"/v1/admin/requests/{secret}"),
            await mallory.post(f"/v1/admin/tenants/{secret}/suspend", {}),
            await mallory.post("/v1/admin/keys", {"tenant": "acme", "user": secret}),
            await home.caller().get(f"/v1/requests/{secret}"),
            await home.caller().get(f"/v1/models/{secret}"),
            await home.caller().post(CHAT, chat_body() | {"model": secret}),
        ]
        assert {answer.status for answer in told} <= {400, 403, 404}
        assert secret not in str(home.logged)
        for path in home.folder.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path.name

    attacked(tmp_path, story)


@pytest.mark.parametrize("development", (True, False))
def test_i_what_fails_with_nobody_waiting_shows_no_words(
    capfd: pytest.CaptureFixture[str], *, development: bool
) -> None:
    async def fail(canary: str) -> None:
        raise ValueError(canary)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        logs.watch(loop, logs.configure(development=development))
        loop.call_soon(int, "the prompt")
        task = loop.create_task(fail("the prompt"))
        await asyncio.wait({task})
        del task
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(run())
    written = "".join(capfd.readouterr())
    assert written.count("loop.failed") == 2
    assert written.count("ValueError") == 2
    assert "the prompt" not in written


@pytest.mark.slow
@pytest.mark.parametrize("field", ("user", "project", "service_class", "groups"))
@pytest.mark.parametrize("name", ("a\r\nb", "\x1b[2J", " a", "a\u202eb", "\x00"))
def test_m_a_key_acts_under_a_printable_name(tmp_path: Path, field: str, name: str) -> None:
    async def story(home: Inhouse) -> None:
        value: object = [name] if field == "groups" else name
        body = {"tenant": "acme", "user": "svc", field: value}
        answer = await administrator(home, "acme").post("/v1/admin/keys", body)
        assert answer.status == 400
        assert answer.json()["param"] == field

    attacked(tmp_path, story)


# Authority withdrawn at awkward moments.


def test_t_authority_withdrawn_while_the_body_is_sent_is_gone(tmp_path: Path) -> None:
    """A thief opens a request and holds its body back until the key was revoked."""

    async def story(home: Inhouse) -> None:
        made = await new_key(home, "acme")
        raw = b'{"model": "echo", "messages": [{"role": "user", "content": "hello"}]}'
        slow = _Dripped(raw)
        asked = asyncio.create_task(slow.post(home.public, CHAT, made["secret"]))
        await slow.reading.wait()
        revoked = await administrator(home, "acme").post(f"/v1/admin/keys/{made['id']}/revoke", {})
        assert revoked.status == 200
        slow.go_on.set()
        await asked
        assert slow.status == 403
        assert b"authorization_revoked" in slow.body
        assert home.echo.gauges.prompt_tokens == 0

    attacked(tmp_path, story)


class _Dripped:
    """A client whose body comes when it is told to."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.reading = asyncio.Event()
        self.go_on = asyncio.Event()
        self.gone = asyncio.Event()
        self.status = 0
        self.body = b""
        self.headers: dict[str, str] = {}

    async def post(self, app: Any, path: str, credential: str) -> None:
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"test"), (b"authorization", b"Bearer " + credential.encode())],
        }
        parts = iter((self.raw[:1], self.raw[1:]))

        async def receive() -> dict[str, Any]:
            part = next(parts, None)
            if part is None:
                await self.gone.wait()
                return {"type": "http.disconnect"}
            if part == self.raw[1:]:
                self.reading.set()
                await self.go_on.wait()
            return {"type": "http.request", "body": part, "more_body": part == self.raw[:1]}

        async def send(message: dict[str, Any]) -> None:
            if "status" in message:
                self.status = message["status"]
                self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            self.body += message.get("body", b"")

        await app(scope, receive, send)


# Requests that cost more than they pay for.


def test_m_stop_strings_are_prepared_once_and_only_for_who_is_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 choices with 16 stop strings of 512 characters were 370 MB and 1.4 s, before any limit."""
    built: list[int] = []
    add = stops.Automaton._add

    def counted(self: stops.Automaton, stop: str) -> None:
        built.append(len(stop))
        add(self, stop)

    monkeypatch.setattr(stops.Automaton, "_add", counted)

    async def story(home: Inhouse) -> None:
        many = [chr(0x4E00 + i) * 512 for i in range(16)]
        refused = await home.caller().chat("hello", n=128, stop=many)
        assert refused.error["code"] == "too_many_choices"
        assert built == []
        served = await home.caller().chat("hello", n=8, stop=many)
        assert served.status == 200
        assert len(built) == 16

    attacked(tmp_path, story)


@pytest.mark.slow
def test_m_nobody_waits_on_the_event_loop_for_anothers_long_conversation(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        template = home.house.deployments["echo"].reading().template
        assert template is not None
        template._lock.acquire()
        safety = threading.Timer(5, template._lock.release)  # the loop could not, were it waiting
        safety.start()
        asked = home.caller().start("POST", CHAT, chat_body("hello"))
        async with asyncio.timeout(4):
            for _ in range(200):
                assert not asked.task.done()
                await asyncio.sleep(0.001)
        safety.cancel()
        template._lock.release()
        assert (await asked.end()).status == 200

    attacked(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("listener", ("public", "admin"))
def test_m_slow_bodies_take_no_more_than_a_part_of_the_places(
    tmp_path: Path, listener: str
) -> None:
    async def story(home: Inhouse) -> None:
        app = home.public if listener == "public" else home.admin
        path = CHAT if listener == "public" else "/v1/admin/tokens/revoke"
        slow = [_Dripped(b"{}") for _ in range(SENDING_MAX + 3)]
        mallory, carol = home.tokens["acme/admin"], home.tokens["globex/admin"]
        posts = [asyncio.create_task(each.post(app, path, mallory)) for each in slow]
        for each in slow[:SENDING_MAX]:
            await each.reading.wait()
        await posts[-1]
        assert slow[-1].status == 429
        assert slow[-1].headers["retry-after"] == "1"
        assert b"concurrency_exceeded" in slow[-1].body
        other = _Dripped(b"{}")
        other.go_on.set()
        await other.post(app, path, carol)
        assert other.status == 400  # read and judged
        for each in slow:
            each.go_on.set()
        await asyncio.gather(*posts)
        assert [each.status for each in slow].count(400) == SENDING_MAX
        again = _Dripped(b"{}")
        again.go_on.set()
        await again.post(app, path, mallory)
        assert again.status == 400

    attacked(tmp_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", (0, 1e-300, 1e-40, 0.0009, 2.01))
def test_m_a_penalty_that_overflows_is_refused(tmp_path: Path, penalty: float) -> None:
    async def story(home: Inhouse) -> None:
        answer = await home.caller().chat("hello", repetition_penalty=penalty, top_p=0.5)
        assert answer.status == 400
        assert answer.error["param"] == "repetition_penalty"
        assert (
            await home.caller().chat("hello", repetition_penalty=0.001, top_p=0.5)
        ).status == 200

    attacked(tmp_path, story)
