"""The audits against deployments that isolate, leak and cache nothing: each must be told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.cli import client, main
from gateway.cli.audit_asking import Answer, Line
from gateway.cli.audit_isolation import matrix
from gateway.cli.audit_registry import Registry
from gateway.cli.audit_timing import conduct, duration_s, levels_of, victims_of
from gateway.cli.show import Refusal
from security.isolation_audit import HELD, ROWS, Ask, Need, Result, State, judge
from security.keyring import open_keyring
from security.timing_audit import Design, Level, Outcome, Verdict
from security.timing_audit import judge as judge_times
from security.timing_audit_plan import Role, trials
from tests.gateway.audited import Deployment, Scope, by_request, by_tenant, by_user, unscoped

ROOT = Path(__file__).parents[2]
DESIGN = Design(
    pairs=250,
    levels=(Level.SAME_USER, Level.SAME_TENANT, Level.CROSS_TENANT),
    victims=(1,),
    prefix_tokens=64,
    seed=9,
)
LACKS = dict.fromkeys(Need, "not here")


def nothing() -> None:
    raise AssertionError("no document here")


def audited(deployment: Deployment) -> Verdict:
    samples, stopped = conduct(DESIGN, trials(DESIGN), deployment.timed, nothing)
    return judge_times(replace(DESIGN, prefix_tokens=2048), samples, stopped=stopped)


@pytest.mark.parametrize(
    ("scope", "outcome", "says"),
    (
        (by_user, Outcome.PASS, "No difference at same-tenant, cross-tenant"),
        (unscoped, Outcome.FAIL, "same-tenant/1, cross-tenant/1"),
        (by_tenant, Outcome.FAIL, "same-tenant/1 "),
        (by_request, Outcome.INCONCLUSIVE, "is the cache on?"),
    ),
)
def test_times_alone_tell_deployments_apart(scope: Scope, outcome: Outcome, says: str) -> None:
    """Usage that tells of no hit hides nothing."""
    verdict = audited(Deployment(scope, discloses=False))
    assert verdict.outcome is outcome, verdict.reason
    assert says in verdict.reason


def test_usage_that_tells_of_anothers_hit_is_enough() -> None:
    verdict = audited(Deployment(unscoped, noise_ns=1e9))
    assert verdict.outcome is Outcome.FAIL
    assert "told of cached tokens" in verdict.reason


def table_of(scope: Scope) -> tuple[Result, ...]:
    ask = Deployment(scope).ask
    return matrix(ask, seed=1, repeats=2, prefix_tokens=64, lacks=LACKS)


def test_the_matrix_of_one_that_isolates() -> None:
    rows = {row.dimension: row for row in table_of(by_user)}
    assert {rows[name].state for name in ("user", "tenant", "tools", "prompt_cache_key")} == {
        State.HOLDS
    }
    assert rows["document"].state is State.NOT_AVAILABLE
    assert rows["model"].state is rows["tokeniser"].state is State.NOT_VARIED
    outcome, reason = judge(tuple(rows.values()))
    assert outcome is Outcome.INCONCLUSIVE, "documents are not there: never a pass"
    assert "document, provenance, ACL version, template" in reason
    there = [row for row in rows.values() if row.state is not State.NOT_AVAILABLE]
    assert judge(there)[0] is Outcome.PASS
    assert judge([row for row in there if row.state is State.NOT_VARIED])[0] is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("scope", "leaks"),
    (
        (unscoped, {row.dimension for row in ROWS if row.needs is None}),
        (
            by_tenant,
            {row.dimension for row in ROWS if row.needs is None and row.dimension != "tenant"},
        ),
        (lambda ask: (ask.role, ask.fields.get("user")), {
            "customer (safety_identifier)", "prompt_cache_key", "tools",
        }),
    ),
)  # fmt: skip
def test_the_matrix_names_what_leaks(scope: Scope, leaks: set[str]) -> None:
    rows = table_of(scope)
    assert {row.dimension for row in rows if row.state is State.LEAKS} == leaks
    outcome, reason = judge(rows)
    assert outcome is Outcome.FAIL
    assert all(name in reason for name in leaks)


def test_a_cache_that_shares_nothing_proves_nothing() -> None:
    rows = table_of(by_request)
    assert {row.state for row in rows if row.same is not None} == {State.UNPROVEN}
    assert judge(rows)[0] is Outcome.INCONCLUSIVE


def test_what_is_cached_for_everybody_is_no_reuse() -> None:
    def ask(what: Ask, text: str) -> Answer:
        own = deployment.ask(what, text)
        return replace(own, cached_tokens=own.cached_tokens + 16)

    deployment = Deployment(by_request)
    rows = matrix(ask, seed=1, repeats=1, prefix_tokens=64, lacks=LACKS)
    assert State.LEAKS not in {row.state for row in rows}


def test_a_field_that_the_server_refuses_is_shown_with_its_words() -> None:
    def ask(what: Ask, text: str) -> Answer:
        if status is not None and "user" in what.fields:
            raise Refusal("users are not known here", status=status)
        return deployment.ask(what, text)

    deployment, status = Deployment(), 400
    rows = matrix(ask, seed=1, repeats=1, prefix_tokens=64, lacks=LACKS)
    (row,) = [each for each in rows if each.dimension == "customer (user)"]
    assert (row.state, row.remark) == (State.NOT_AVAILABLE, "users are not known here")
    status = 500
    with pytest.raises(Refusal):
        matrix(ask, seed=1, repeats=1, prefix_tokens=64, lacks=LACKS)


def test_every_test_that_the_matrix_names_is_there() -> None:
    named = {each.by for each in HELD} | {row.held_by for row in ROWS if row.held_by}
    assert named
    assert all((ROOT / name).is_file() for name in named)


def test_a_run_that_ends_early_says_so_and_keeps_what_it_has() -> None:
    small = replace(DESIGN, pairs=3)
    samples, why = conduct(small, trials(small), Deployment().timed, nothing, stop_after=5)
    assert sum(map(len, samples.values())) == 5
    assert why is not None
    assert "stopped after 5 of 12" in why

    for error, says in ((Refusal("no budget"), "no budget"), (KeyboardInterrupt(), "interrupted")):
        samples, why = conduct(small, trials(small), failing_after(9, error), nothing)
        assert samples
        assert why is not None
        assert says in why
    with pytest.raises(Refusal, match="no token"):
        conduct(small, trials(small), failing_after(0, Refusal("no token")), nothing)


def failing_after(left: int, error: BaseException) -> Callable[[Role, str, bool], Answer]:
    deployment, counts = Deployment(), iter(range(left))

    def ask(role: Role, text: str, after_document: bool) -> Answer:
        if next(counts, None) is None:
            raise error
        return deployment.timed(role, text, after_document)

    return ask


def test_levels_and_victims_are_read_or_refused() -> None:
    assert levels_of("cross-tenant, same-user,cross-tenant") == (
        Level.CROSS_TENANT,
        Level.SAME_USER,
    )
    assert victims_of("1, 25") == (1, 25)
    for read, text in ((levels_of, "fresh"), (levels_of, ""), (victims_of, "0"), (victims_of, "a")):
        with pytest.raises(Refusal):
            read(text)


def test_the_duration_is_what_the_slower_of_machine_and_rates_takes() -> None:
    answer = Answer(1, 2000, 0)
    assert duration_s(100, 0.5, answer) == 50
    assert duration_s(100, 0.5, replace(answer, requests_per_minute=60)) == 100
    assert duration_s(100, 0.5, replace(answer, tokens_per_minute=20_000)) == 600


# The front door


def sse(*chunks: Any) -> bytes:
    lines = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks]
    return b": waiting\n\n" + b"".join(lines) + b"data: [DONE]\n\n"


def usage_of(prompt: int, cached: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}


ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
WORD = {"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}
USAGE = {"choices": [], "usage": usage_of(7, 4)}
Handler = Callable[[httpx2.Request], httpx2.Response]


def line(handler: Handler, waited: list[float]) -> Line:
    ticks = iter(range(0, 10_000, 10))
    server = client.Server("http://127.0.0.1:1", "tok", httpx2.MockTransport(handler))
    return Line(server, "m", clock_ns=lambda: next(ticks), sleep=waited.append)


def test_the_first_word_is_timed_and_usage_read() -> None:
    headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-limit-tokens": "x"}
    asked: list[Any] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        asked.append(msgspec.json.decode(request.content))
        return httpx2.Response(200, content=sse(ROLE, WORD, USAGE), headers=headers)

    with line(handler, []) as one:
        assert one.ask("hi", {"user": "u"}) == Answer(20, 7, 4, requests_per_minute=60)
    assert (asked[0]["max_tokens"], asked[0]["stream"], asked[0]["user"]) == (1, True, "u")


def test_it_waits_as_long_as_it_is_told_and_times_only_the_answer() -> None:
    answers = [
        httpx2.Response(429, headers={"retry-after": "7"}),
        httpx2.Response(503, headers={"retry-after": "100000"}),
        httpx2.Response(200, content=sse(WORD, USAGE)),
    ]
    waited: list[float] = []
    with line(lambda _: answers.pop(0), waited) as one:
        assert one.ask("hi").ttft_ns == 10
    assert waited == [7.0, 120.0]
    with (
        line(lambda _: httpx2.Response(429, headers={"retry-after": "1"}), waited) as one,
        pytest.raises(Refusal, match="too busy"),
    ):
        one.ask("hi")


def test_it_waits_for_its_registrations_too() -> None:
    """They draw from the rate that requests draw from."""
    busy = {"retry-after": "7"}
    answers = [
        *(httpx2.Response(429, headers=busy), httpx2.Response(200, json={"data": []})),
        httpx2.Response(200, json={"user": "eve"}),
        *(httpx2.Response(429, headers=busy), httpx2.Response(200, json={"id": "doc_1"})),
        *(httpx2.Response(429, headers=busy), httpx2.Response(200, json={})),
        httpx2.Response(200, json={}),
        httpx2.Response(403),
        httpx2.Response(200, json={}),
    ]
    transport = httpx2.MockTransport(lambda _: answers.pop(0))
    server = client.Server("http://127.0.0.1:1", "tok", transport)
    waited: list[float] = []
    with Registry(server, None, server, sleep=waited.append) as registry:
        registry.prepare(1, frozenset({Need.DOCUMENTS}), each=1)
        assert registry.lacks == {}
        registry.renew(0)
        assert waited == [7, 7, 7]
        with pytest.raises(Refusal, match="may not do that"):
            registry.renew(0)
    assert answers == []


@pytest.mark.parametrize(
    ("content", "says"),
    (
        (b"<html>", "not answer as a model server"),
        (sse(WORD), "no first token, or no"),
        (sse(USAGE), "no first token, or no"),
        (sse({"error": {"message": "it broke"}}), "it broke"),
    ),
)
def test_an_answer_that_is_none_is_one_sentence(content: bytes, says: str) -> None:
    with (
        line(lambda _: httpx2.Response(200, content=content), []) as one,
        pytest.raises(Refusal, match=says),
    ):
        one.ask("hi")


# The commands


NAMES = {"acme/alice": "al", "acme/bob": "bo", "globex/carol": "ca", "acme/admin": "ad"}
ROLES = {"al": Role.ATTACKER, "bo": Role.COLLEAGUE, "ca": Role.STRANGER}


@dataclass
class House:
    """A state directory whose server is a `Deployment`.  `documents`: their ACL versions; None: there is no
    such thing.  `revives`: a right that was given again finds what the old one left."""

    folder: Path
    deployment: Deployment = field(default_factory=Deployment)
    documents: dict[str, int] | None = None
    revives: bool = False
    refuses: tuple[str, ...] = ()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        if request.url.path == "/v1/chat/completions":
            return self._answer(ROLES[token], msgspec.json.decode(request.content))
        kind, _, rest = request.url.path.removeprefix("/v1/").partition("/")
        if self.documents is None or kind not in {"documents", "templates", "me"}:
            return httpx2.Response(404, json={"error": {"message": "there is none"}})
        name = rest.partition("/")[0]
        if request.method == "POST":
            name = f"{kind}-{len(self.documents)}"
            self.documents[name] = 1
        elif request.method == "PUT":
            assert token == "bo", "the owner"
            self.documents[name] += 1
        elif request.method == "DELETE":
            del self.documents[name]
        return httpx2.Response(200, json={"id": name, "user": "alice"})

    def _answer(self, role: Role, body: Any) -> httpx2.Response:
        names = {"user", "tools", "prompt_cache_key", "safety_identifier", "prompt"}
        fields = {name: value for name, value in body.items() if name in names}
        if refused := [name for name in self.refuses if name in fields]:
            error = {"message": f"{refused[0]} is not known here"}
            return httpx2.Response(400, json={"error": error})
        text = body["messages"][0]["content"]
        if not isinstance(text, str):
            (file, words), text = text, text[1]["text"]
            name = file["file"]["file_id"]
            version = 0 if self.revives else (self.documents or {})[name]
            fields["document"] = f"{name}@{version}"
            assert words["type"] == "text"
        answer = self.deployment.ask(Ask(role, fields), text)
        usage = usage_of(answer.prompt_tokens, answer.cached_tokens)
        return httpx2.Response(200, content=sse(WORD, {"choices": [], "usage": usage}))


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> House:
    known = client.Known("http://127.0.0.1:9/v1", "http://127.0.0.1:8", NAMES)
    (tmp_path / "dev.json").write_bytes(msgspec.json.encode(known))
    found, real = House(tmp_path), client.Server.open
    monkeypatch.setattr(
        client.Server,
        "open",
        lambda self, *_: real(replace(self, transport=httpx2.MockTransport(found))),
    )
    for name in ("LOCKGATE_TOKEN", "LOCKGATE_ADMIN_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCKGATE_STATE_DIR", str(tmp_path))
    return found


def lockgate(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0)


TIMING = ("audit", "timing", "--pairs", "2", "--victim-requests", "1", "--prefix-tokens", "64")
ISOLATION = ("audit", "isolation", "--repeats", "1", "--prefix-tokens", "64")


def test_both_audits_write_signed_reports_that_verify(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    open_keyring(house.folder / "root.key")
    assert lockgate(*TIMING) == 3
    told = capsys.readouterr()
    assert "requests of" in told.err.splitlines()[0], "the duration comes first"
    assert "after-revoke cannot be measured: this server has no registered documents." in told.err
    assert lockgate(*ISOLATION, "--json") == 3
    written = msgspec.json.decode(capsys.readouterr().out)
    assert written["signed"] is True
    reason = "Not available on this server: document, provenance, ACL version, template."
    assert written["verdict"]["reason"] == reason
    files = sorted((house.folder / "reports").glob("*.json"))
    assert len(files) == 2
    for file in files:
        assert lockgate("audit", "report", "verify", str(file)) == 0
    assert "Signed by this key." in capsys.readouterr().out
    page = files[0].with_suffix(".html")
    page.write_bytes(page.read_bytes() + b" ")
    assert lockgate("audit", "report", "verify", str(files[0])) == 1
    assert "The page was CHANGED." in capsys.readouterr().out


def states(house: House, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lockgate(*ISOLATION)
    capsys.readouterr()
    (file,) = (house.folder / "reports").glob("*.json")
    report = msgspec.json.decode(file.read_bytes())["report"]
    file.unlink()
    return dict(zip((row["dimension"] for row in report["rows"]), report["states"], strict=True))


def test_documents_and_templates_are_registered_varied_and_deleted(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.documents = {}
    rows = ("document", "provenance", "ACL version", "template")
    assert {states(house, capsys)[row] for row in rows} == {State.HOLDS}
    assert house.documents == {}, "nothing of an audit stays"
    house.revives, house.refuses = True, ("tools",)
    found = states(house, capsys)
    assert (found["ACL version"], found["document"]) == (State.LEAKS, State.HOLDS)
    assert found["tools"] == State.NOT_VARIED, "a test holds it"


def test_after_revoke_is_measured_where_there_are_documents(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.documents = {}
    words = (*TIMING, "--levels", "same-user,after-revoke", "--json")
    assert lockgate(*words) == 3, "two pairs are too few"
    findings = msgspec.json.decode(capsys.readouterr().out)["verdict"]["findings"]
    assert [(each["level"], each["pairs"], each["reported"]) for each in findings] == [
        ("same-user", 2, 2),
        ("after-revoke", 2, 0),
        ("fresh", 2, 0),
    ]
    house.revives = True
    assert lockgate(*words) == 1
    assert "after-revoke/1" in capsys.readouterr().out


def test_a_report_without_a_key_says_that_nobody_signed(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lockgate(*ISOLATION, "--out", str(house.folder / "out")) == 3
    assert "not signed" in capsys.readouterr().err
    (file,) = (house.folder / "out").glob("*.json")
    assert lockgate("audit", "report", "verify", str(file)) == 1
    assert not (house.folder / "root.key").exists(), "no key is made by looking"


@pytest.mark.parametrize(
    ("words", "says"),
    (
        (("--attacker", "nobody"), "no token 'nobody'"),
        (("--colleague", "acme/alice"), "three different people"),
        (("--levels", "all"), "There are same-user"),
        (("--prefix-tokens", "64", "--tokens", "absent.json"), "cannot be read"),
    ),
)
def test_what_cannot_be_audited_is_refused(
    house: House, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert lockgate("audit", "timing", *words) in {1, 2}
    assert says in capsys.readouterr().err


def test_a_server_elsewhere_is_audited_only_by_its_operator(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    file = house.folder / "tokens.json"
    file.write_bytes(msgspec.json.encode(client.Known("https://llm.example.com/v1", "", NAMES)))
    words = (*ISOLATION, "--tokens", str(file))
    file.chmod(0o644)
    assert lockgate(*words) == 1
    assert "open to others" in capsys.readouterr().err
    file.chmod(0o600)
    assert lockgate(*words) == 1
    assert "--i-operate-this" in capsys.readouterr().err
    assert lockgate(*words, "--i-operate-this") == 3
    assert "Not available on this server" in capsys.readouterr().out
