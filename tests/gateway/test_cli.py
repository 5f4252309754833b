"""The commands, each against a fake admin listener that speaks the real wire format."""

from __future__ import annotations

import socket
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import jwt
import msgspec
import pytest

from gateway.cli import client, main
from gateway.cli.diagnosis import RELEASED_S
from gateway.cli.explain import bars
from gateway.cli.show import table
from gateway.settings import Settings
from security import dev_issuer

EXAMPLE = Path(__file__).parents[2] / "deploy" / "lockgate.example.toml"


@dataclass
class Fake:
    """Answers by method and path, or lets a function of the body; keeps what was asked, and the last token."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    token: str = ""

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        name = f"{request.method} {request.url.raw_path.decode()}"
        body = msgspec.json.decode(request.content) if request.content else None
        self.asked.append((name, body))
        self.token = request.headers["authorization"].removeprefix("Bearer ")
        if name not in self.answers:
            return httpx2.Response(404, json={"title": "Not found", "detail": f"no {name}"})
        answer = self.answers[name]
        if callable(answer):
            answer = answer(body)
        if isinstance(answer, httpx2.Response):
            return answer
        return httpx2.Response(200, json=answer)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    fake = Fake()
    known = client.Known("http://pub", "http://adm", {"operator": "op", "acme/alice": "al"})
    (tmp_path / "dev.json").write_bytes(msgspec.json.encode(known))
    monkeypatch.setattr(
        client.Server,
        "open",
        lambda self, *_: httpx2.Client(
            base_url=self.url,
            transport=httpx2.MockTransport(fake),
            headers={"authorization": f"Bearer {self.token}"},
        ),
    )
    for name in ("LOCKGATE_CONFIG", "LOCKGATE_TOKEN", "LOCKGATE_ADMIN_URL", "LOCKGATE_MODELS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCKGATE_STATE_DIR", str(tmp_path))
    return fake


def lockgate(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0)


def test_a_key_is_created_and_its_secret_printed_first(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["POST /v1/admin/keys"] = {"id": "key_1", "secret": "lg_sk", "tenant": "acme"}
    words = ("key", "create", "--tenant", "acme", "--user", "ci", "--role", "finance")
    assert lockgate(*words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "lg_sk"
    assert "key_1" in out
    body = {"tenant": "acme", "user": "ci", "roles": ["finance"]}
    assert admin.asked == [("POST /v1/admin/keys", body)]
    assert lockgate(*words, "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out)["secret"] == "lg_sk"


def test_a_key_expires_when_told(admin: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.answers["POST /v1/admin/keys"] = {"id": "k", "secret": "s"}
    monkeypatch.setattr("gateway.cli.credentials.time.time", lambda: 1_000.5)
    assert lockgate("key", "create", "--tenant", "a", "--user", "b", "--expires-in", "2d") == 0
    assert admin.asked[0][1]["expires_at"] == 1_000 + 172_800
    assert lockgate("key", "create", "--tenant", "a", "--user", "b", "--expires-in", "soon") == 2
    assert lockgate("key", "create", "--tenant", "a", "--user", "b", "--role", "operator") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "asked", "body"),
    (
        ("key rotate key/1", "POST /v1/admin/keys/key%2F1/rotate", {}),
        ("key revoke key_1 --reason x", "POST /v1/admin/keys/key_1/revoke", {"reason": "x"}),
        ("key revoke key_1", "POST /v1/admin/keys/key_1/revoke", {}),
        ("key list --tenant acme", "GET /v1/admin/keys?tenant=acme", None),
        ("token revoke --token-id j1", "POST /v1/admin/tokens/revoke", {"token_id": "j1"}),
        (
            "token revoke --tenant acme --subject alice --issuer https://i/",
            "POST /v1/admin/tokens/revoke",
            {"subject": "alice", "tenant": "acme", "issuer": "https://i/"},
        ),
        (
            "token revoke --subject op",
            "POST /v1/admin/tokens/revoke",
            {"subject": "op", "issuer": dev_issuer.ISSUER},
        ),
        ("tenant list", "GET /v1/admin/tenants", None),
        ("tenant suspend a --reason r", "POST /v1/admin/tenants/a/suspend", {"reason": "r"}),
        ("tenant resume a --reason r", "POST /v1/admin/tenants/a/resume", {"reason": "r"}),
        ("usage report --tenant acme", "GET /v1/admin/usage?by=tenant%2Cuser&tenant=acme", None),
        (
            "check --tenant a --user u --issuer https://i/",
            "GET /v1/admin/check?tenant=a&user=u&issuer=https%3A%2F%2Fi%2F",
            None,
        ),
        ("budget show --tenant acme", "GET /v1/admin/budgets?tenant=acme", None),
        (
            "budget set --tenant acme --user al --usd 5 --reason r --window rolling_24h --soft",
            "POST /v1/admin/budgets",
            {
                "tenant": "acme", "scope": "user", "id": "al", "usd": "5.00",
                "window": "rolling_24h", "zone": "UTC", "hard": False, "reason": "r",
            },
        ),
        (
            "budget set --tenant acme --usd 5 --reason r --till",
            "POST /v1/admin/budgets",
            {
                "tenant": "acme", "scope": "tenant", "id": "acme", "usd": "5.00", "hard": True,
                "window": "calendar_month", "zone": "UTC", "reason": "r", "till": True,
            },
        ),
        (
            "budget set --tenant acme --user al --issuer i --usd 5 --reason r",
            "POST /v1/admin/budgets",
            {
                "tenant": "acme", "scope": "user", "id": "al", "issuer": "i", "usd": "5.00",
                "window": "calendar_month", "zone": "UTC", "hard": True, "reason": "r",
            },
        ),
        (
            "budget set --tenant acme --usd 0.000000001 --reason r",
            "POST /v1/admin/budgets",
            {
                "tenant": "acme", "scope": "tenant", "id": "acme", "usd": "0.000000001",
                "window": "calendar_month", "zone": "UTC", "hard": True, "reason": "r",
            },
        ),
        (
            "budget top-up --tenant acme --user al --issuer i --usd 5 --reason r --id t1",
            "POST /v1/admin/budgets/top-up",
            {
                "tenant": "acme", "scope": "user", "name": "al", "issuer": "i", "usd": "5.00",
                "reason": "r", "id": "t1",
            },
        ),
        (
            "budget credit --tenant acme --usd 0.000000001 --reason r",
            "POST /v1/admin/budgets/credit",
            {"tenant": "acme", "usd": "0.000000001", "reason": "r"},
        ),
        (
            "budget refund req_1 --tenant acme --usd 1 --reason r",
            "POST /v1/admin/budgets/refund",
            {"tenant": "acme", "usd": "1.00", "reason": "r", "request_id": "req_1"},
        ),
        (
            "budget adjustments --tenant acme --request r1",
            "GET /v1/admin/budgets/adjustments?tenant=acme&request_id=r1",
            None,
        ),
        ("usage report --by tenant --from 2026-11-01",
         "GET /v1/admin/usage?by=tenant&from=2026-11-01", None),
        ("check --tenant acme --user al", "GET /v1/admin/check?tenant=acme&user=al", None),
        ("explain req_1", "GET /v1/admin/requests/req_1", None),
        ("queue --once --tenant a", "GET /v1/admin/queue?tenant=a", None),
        ("promises --tenant a --by hour", "GET /v1/admin/promises?tenant=a&by=hour", None),
    ),
)  # fmt: skip
def test_each_command_asks_its_question(
    admin: Fake, capsys: pytest.CaptureFixture[str], words: str, asked: str, body: object
) -> None:
    admin.answers[asked] = {"rows": [], "data": [{"id": 1}]} if body is None else {"secret": "s"}
    for extra in ([], ["--json"]):
        admin.asked.clear()
        assert lockgate(*words.split(), *extra) == 0, capsys.readouterr().err
        assert admin.asked == [(asked, body)]
        out = capsys.readouterr().out
    assert msgspec.json.decode(out) == admin.answers[asked]


def test_what_the_server_refuses_ends_with_its_sentence(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lockgate("tenant", "list") == 1
    assert "no GET /v1/admin/tenants" in capsys.readouterr().err
    assert lockgate("tenant", "list", "--json") == 1
    error = msgspec.json.decode(capsys.readouterr().err)["error"]
    assert error == {"message": "no GET /v1/admin/tenants", "status": 404}


@pytest.mark.parametrize("shape", ([1], {"data": "x"}, "x", {"tenants": [None]}))
def test_an_answer_of_another_shape_is_no_traceback(admin: Fake, shape: object) -> None:
    admin.answers["GET /v1/admin/tenants"] = shape
    assert lockgate("tenant", "list") == 1


@pytest.mark.parametrize(
    "words",
    (
        "", "nope", "key create", "tenant suspend acme", "token revoke",
        "token revoke --token-id a --subject b", "budget set --tenant a --usd -1 --reason r",
        "budget set --tenant a --usd 1 --reason r --user u --key k", "check",
        "budget top-up --tenant a --usd 1 --reason r --user u --key k",
        "budget credit --tenant a --usd -1 --reason r", "budget refund --tenant a --usd 1",
        "budget set --tenant a --usd 1 --reason r --zone Mars/X", "serve --port 0", "run --json",
    ),
)  # fmt: skip
def test_what_is_mistyped_is_code_2_and_asks_nobody(admin: Fake, words: str) -> None:
    assert lockgate(*words.split()) == 2
    assert admin.asked == []


def test_usage_ends_with_its_total(admin: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    admin.answers["GET /v1/admin/usage?by=tenant%2Cuser"] = {
        "rows": [
            {
                "tenant": "acme",
                "user": "alice",
                "output_tokens": 1200,
                "nano_usd": 720_000,
                "usd": "0.00072",
                "device_ns": 2_000_000,
            },
            {
                "tenant": "globex",
                "user": "carol",
                "output_tokens": 5,
                "nano_usd": 3000,
                "usd": "0.000003",
                "device_ns": 0,
            },
        ],
        "total": {
            "output_tokens": 1205,
            "nano_usd": 723_000,
            "usd": "0.000723",
            "device_ns": 2_000_000,
        },
    }
    assert lockgate("usage", "report") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["tenant", "user", "output", "tokens", "usd", "device", "ms"]
    assert lines[1].split() == ["acme", "alice", "1,200", "0.00072", "2"]
    assert lines[3].split() == ["total", "–", "1,205", "0.000723", "2"]  # noqa: RUF001 — a dash


def test_device_time_is_shown_in_seconds(admin: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    times = {
        "wall_ns": 9_000_000_000,
        "attributed_ns": 1_500_000,
        "load_ns": 0,
        "idle_ns": 8_998_500_000,
    }
    path = "GET /v1/admin/usage/device?by=day%2Cmodel&from=2026-11-01"
    admin.answers[path] = {"rows": [{"day": "2026-11-30", "model": "m", **times}], "total": times}
    assert lockgate("usage", "device", "--by", "day,model", "--from", "2026-11-01") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("day", "model", "wall", "s", "attributed", "s", "load", "s", "idle", "s"),
    ]
    assert lines[1].split() == ["2026-11-30", "m", "9", "0.002", "0", "8.998"]
    assert lines[2].split()[0] == "total"
    assert lockgate("usage", "device", "--by", "day,model", "--from", "2026-11-01", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out)["total"] == times
    admin.answers[path] = {"rows": [], "total": times}
    assert lockgate("usage", "device", "--by", "day,model", "--from", "2026-11-01") == 0
    assert "No device was counted." in capsys.readouterr().out


LANES: dict[str, Any] = {
    "lanes": [
        {"model": "m", "service_class": "batch", "tenant": "globex", "running": 0, "waiting": 12,
         "oldest_ms": 61_250, "blocks": 0, "share_used": 0.031, "share_due": 0.5},
        {"model": "m", "service_class": "interactive", "tenant": "acme\x1b[2J", "running": 3,
         "waiting": 0, "oldest_ms": 0, "blocks": 9, "share_used": 0.969, "share_due": 0.5},
    ],
    "classes": [
        {"model": "m", "service_class": "batch", "running": 0, "waiting": 1012},
        {"model": "m", "service_class": "interactive", "running": 3, "waiting": 0},
    ],
    "left_out": 1000,
    "silent": ["n"],
}  # fmt: skip


def test_the_queue_is_a_lane_a_line(admin: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    admin.answers["GET /v1/admin/queue"] = LANES
    assert lockgate("queue") == 0  # a pipe gets it once
    out = capsys.readouterr().out
    head, titles, first, second, more, silent = out.splitlines()
    assert (head, more) == ("3 running, 1,012 waiting", "and 1,000 more")
    assert titles.split() == [
        "class",
        "tenant",
        "running",
        "waiting",
        "used",
        "due",
        "oldest",
        "wait",
    ]
    assert first.split() == ["batch", "globex", "0", "12", "3%", "50%", "61.2", "s"]
    assert second.split()[2:] == ["3", "0", "97%", "50%", "0.0", "s"]
    assert "\x1b" not in out
    assert silent.startswith("not heard from: n")
    own = [{k: v for k, v in lane.items() if "share" not in k} for lane in LANES["lanes"]]
    admin.answers["GET /v1/admin/queue"] = {"lanes": own, "classes": [], "silent": []}
    assert lockgate("queue") == 0
    assert "due" not in capsys.readouterr().out


def test_the_queue_is_looked_at_again_and_again_until_ctrl_c(
    admin: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["GET /v1/admin/queue"] = LANES
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("gateway.cli.scheduling.time.sleep", sleep)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert lockgate("queue", "--interval", "0.5") == 130
    assert (slept, len(admin.asked)) == ([0.5] * 3, 3)
    assert "globex" in capsys.readouterr().out


def test_a_server_that_is_restarted_is_waited_for_and_one_that_refuses_is_not(
    admin: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after: list[Any] = [
        httpx2.Response(503, json={"detail": "It is \x1b[31mstarting."}),
        LANES,
        httpx2.Response(403, json={"detail": "no more"}),
    ]

    def sleep(_: float) -> None:
        admin.answers["GET /v1/admin/queue"] = after.pop(0)

    admin.answers["GET /v1/admin/queue"] = LANES
    monkeypatch.setattr("gateway.cli.scheduling.time.sleep", sleep)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")  # a narrow terminal folds, and loses nothing
    assert lockgate("queue") == 1
    told = capsys.readouterr()
    assert "no answer, trying again" in told.out
    assert "\x1b[31mstarting" not in told.out
    assert told.out.count("1,012 waiting") >= 2
    assert "no more" in told.err
    assert after == []
    admin.answers["GET /v1/admin/queue"] = httpx2.Response(503, json={})
    assert lockgate("queue") == 1  # nothing was ever seen


def test_promises_are_told_with_what_the_words_mean(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"service_class": "interactive", "tenant": "acme", "ttft_ms": 2000, "itl_ms": None,
           "requests": 17, "promised": 9, "kept": 7, "broken": 2, "refused": 3, "limited": 4,
           "left": 1, "unjudged": 0, "ttft_broken": 2, "itl_broken": 0, "unserved": 1,
           "displaced": 1}  # fmt: skip
    asked = "GET /v1/admin/promises?by=service_class%2Ctenant"
    admin.answers[asked] = {"from": "2026-11-29T10:00:00+00:00", "rows": [row]}
    assert lockgate("promises") == 0
    titles, told, *rest = capsys.readouterr().out.splitlines()
    assert "late" in titles
    assert told.split() == [
        *("interactive", "acme", "2,000", "–", "17", "7", "2", "3", "4", "1", "0", "2", "0", "1"),  # noqa: RUF001 — a dash for nothing
    ]
    assert "Since 2026-11-29" in " ".join(rest)
    parts = "requests = kept + broken + refused + limited + left + unjudged"
    assert parts in " ".join(rest).replace("\n", " ")
    columns = dict(
        zip(
            titles.replace("ttft ms", "ttft").replace("itl ms", "itl").split(),
            told.split(),
            strict=True,
        )
    )
    whole, *named = (int(columns[name]) for name in parts.replace("=", "+").split(" + "))
    assert whole == sum(named)


def test_a_row_that_the_terminal_cannot_hold_is_a_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"class": "interactive", "tenant": name, "requests": 1234} for name in ("acme", "globex")
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for width, lines in ((30, 3), (22, 7)):
        monkeypatch.setenv("COLUMNS", str(width))
        table(rows)
        out = capsys.readouterr().out
        assert (len(out.splitlines()), "interactive" in out, "1,234" in out) == (lines, True, True)


def test_explain_draws_the_stages_tokens_and_cost(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["GET /v1/admin/requests/r"] = {
        "request_id": "r", "tenant": "acme", "outcome": "completed", "finish_reason": "stop",
        "stages": [
            {"name": "admitted", "at": 1_796_000_000, "ms": 2.0},
            {"name": "queued", "at": None, "ms": 0},
            {"name": "prefill", "ms": 98.0},
            {"name": "decode", "ms": 300.0},
        ],
        "tokens": {"input": 40, "output": 9, "delivered": 9},
        "price_lines": [{"meter": "output", "tokens": 9, "usd": "0.0000054"}],
        "price_usd": "0.0000134", "cost_ms": 412.5,
    }  # fmt: skip
    assert lockgate("explain", "r") == 0
    out = capsys.readouterr().out
    for part in (
        "completed",
        "admitted",
        "queued",
        "prefill",
        "decode",
        "300.0 ms",
        "0.0000134",
        "0.0000054",
    ):
        assert part in out
    assert "output tokens     9" in out
    assert "412.5" in out


def test_bars_fall_where_their_stage_fell() -> None:
    stages = [{"name": n, "ms": ms} for n, ms in (("a", 1), ("b", 0), ("c", 25), ("d", 74))]
    drawn = [line[3:13] for line in bars(stages, width=10)]
    assert drawn == ["█         ", "          ", "███       ", "   ███████"]
    assert all("█" not in line for line in bars([{"name": "a", "ms": 0}]))
    assert bars([]) == []


def test_check_a_file_without_a_server(admin: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", "--config", str(EXAMPLE), "--tenant", "acme", "--project", "search")
    assert lockgate(*words, "--json") == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["standing"]["limits"]["user"] == {"rpm": 60, "concurrent": 4}
    assert told["standing"]["budgets"]["project"]["usd"] == "50.00"
    assert lockgate(*words) == 0
    assert "is right" in capsys.readouterr().out
    assert lockgate("check", "--config", str(EXAMPLE), "--tenant", "nobody") == 1
    assert admin.asked == []


def test_check_names_every_fault(
    admin: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[listen]\nworkers = 2\n")
    assert lockgate("check", "--config", str(bad)) == 1
    assert "faults; nothing was started" in capsys.readouterr().err
    assert lockgate("check", "--config", str(bad), "--json") == 1
    paths = {f["path"] for f in msgspec.json.decode(capsys.readouterr().out)["faults"]}
    assert {"listen.hosts", "models", "prices", "issuers", "plans", "tenants"} <= paths


def test_a_minted_token_is_the_development_issuers(
    admin: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("token", "mint", "--tenant", "acme", "--user", "alice")
    assert lockgate(*words) == 1
    assert "no development issuer" in capsys.readouterr().err
    assert list(tmp_path.glob("dev-issuer*")) == []
    dev_issuer.open_dev_issuer(tmp_path)
    assert lockgate(*words, "--role", "tenant_admin", "--ttl", "15m") == 0
    token = capsys.readouterr().out.strip()
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["sub"], claims["tenant"], claims["roles"]) == ("alice", "acme", ["tenant_admin"])
    assert claims["exp"] - claims["iat"] == 900
    assert "cnf" not in claims
    assert lockgate(*words, "--dpop-key", str(tmp_path / dev_issuer.KEY_FILE)) == 0
    bound = jwt.decode(capsys.readouterr().out.strip(), options={"verify_signature": False})
    kid = jwt.get_unverified_header(token)["kid"]  # the same key, and also named by its thumbprint
    assert bound["cnf"] == {"jkt": kid}
    assert lockgate(*words, "--dpop-key", str(tmp_path / "none.pem")) == 1
    assert lockgate(*words, "--ttl", "31d") == 1
    assert lockgate("token", "mint", "--user", "op", "--role", "operator") == 0
    assert lockgate("token", "mint", "--user", "op") == 1
    assert lockgate(*words, "--role", "operator") == 1


def test_serve_hands_settings_to_the_house(
    admin: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    got: list[Settings] = []

    def run(settings: Settings) -> int:
        got.append(settings)
        return 7

    house = types.ModuleType("gateway.bootstrap")
    house.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gateway.bootstrap", house)
    monkeypatch.setattr("gateway.cli.serve.require_free", lambda *_: None)
    assert lockgate("serve", "--port", "9000", "--threads", "2", "--model", "/m.gguf") == 7
    assert (got[0].listen.admin.port, got[0].threads) == (9001, 2)
    assert got[0].models[0].path == "/m.gguf"
    assert got[0].state.dir == tmp_path
    assert lockgate("serve", "--config", str(EXAMPLE), "--admin-port", "9009") == 7
    assert (got[1].mode, got[1].listen.admin.port) == ("production", 9009)
    assert got[1].state.root_key_file == tmp_path / "root.key"
    assert lockgate("serve", "--config", str(EXAMPLE), "--admin-port", "8080") == 1
    assert lockgate("serve", "--config", "absent.toml") == 1
    assert len(got) == 2


def test_a_busy_port_is_told_with_its_option(
    admin: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert lockgate("serve", "--port", str(port), "--admin-port", str(port % 65535 + 1)) == 1
    assert f"Port {port} is in use" in capsys.readouterr().err


def test_audit_verify_says_so_where_there_is_none(
    admin: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert lockgate("audit", "verify") == 1
    assert "no audit log" in capsys.readouterr().err
    assert not (tmp_path / "root.key").exists()


def test_doctor_reports_each_finding_and_fails_on_a_wrong_one(
    admin: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.doctor._ports", lambda _: {})
    monkeypatch.setattr("gateway.cli.doctor._ours", lambda _: frozenset())
    monkeypatch.setattr("gateway.cli.doctor.time.time", lambda: RELEASED_S + 10_000_000.0)
    (tmp_path / "dev.json").chmod(0o644)
    assert lockgate("doctor", "--json") == 1
    told = msgspec.json.decode(capsys.readouterr().out)
    wrong = {item["what"] for item in told["findings"] if item["verdict"] == "wrong"}
    assert {"dev.json", "model"} <= wrong
    assert all(item["fix"] for item in told["findings"] if item["verdict"] == "wrong")
    assert lockgate("doctor") == 1
    assert f"chmod 600 {tmp_path}/dev.json" in capsys.readouterr().out


def test_doctor_looks_for_no_development_files_in_production(
    admin: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.doctor._ports", lambda _: {})
    lockgate("doctor", "--json", "--config", str(EXAMPLE))
    told = msgspec.json.decode(capsys.readouterr().out)
    found = {item["what"] for item in told["findings"]}
    assert "root.key" in found
    assert not found & {"dev.json", "dev-issuer.pem"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert lockgate("--version") == 0
    assert capsys.readouterr().out.startswith("lockgate ")


@pytest.mark.parametrize(
    "words",
    (
        "token mint --tenant acme --user x",
        "tenant list",
        "audit verify",
        "run --prompt x",
        "serve --port 18099",
    ),
)
def test_a_folder_that_cannot_be_looked_into_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A name that no file system takes fails as a forbidden folder does, also for root."""
    monkeypatch.delenv("LOCKGATE_CONFIG", raising=False)
    assert lockgate(*words.split(), "--state-dir", f"/tmp/{'n' * 300}") == 1
    said = capsys.readouterr()
    assert "nnnn" in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_the_doctor_looks_at_a_folder_that_cannot_be_looked_into(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCKGATE_CONFIG", raising=False)
    lockgate("doctor", "--json", "--state-dir", f"/tmp/{'n' * 300}")
    assert "state directory" in capsys.readouterr().out


@pytest.mark.parametrize("words", ("usage report", "run --prompt x"))
def test_an_empty_token_is_nobodys(
    admin: Fake, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """An unset variable does not make an operator of whoever runs a script."""
    assert lockgate(*words.split(), "--token", "") == 1
    assert admin.asked == []
    assert "--token is empty" in capsys.readouterr().err
