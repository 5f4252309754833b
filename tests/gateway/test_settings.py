"""The configuration: the example loads, every fault is named at once, and nothing is taken silently."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from executor.__main__ import _parser
from executor.contract import Workload
from gateway.assembly import executor_command
from gateway.service_classes import workloads
from gateway.settings import Fault, Mode, SettingsError, development, load, with_model
from gateway.settings.decode import decode
from gateway.settings.facts import budget, limits, price, service_classes
from gateway.settings.load import CONFIG_BYTES_MAX, parse, with_state_dir
from gateway.settings.rules import CHECKS, notices
from gateway.settings.shape import BATCH_SIZE, BATCH_WAIT_MS, Algorithm, File, Settings
from policies import facts
from security import dev_issuer
from security.authenticate import KEY_ISSUER
from security.jwks import ALGORITHMS
from tenants.pseudonyms import PSEUDONYM

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "lockgate.example.toml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
NOW_S = 1_796_000_000


def faults_of(text: str, *, now_s: int | None = None) -> tuple[Fault, ...]:
    try:
        parse(text, "test", now_s=now_s)
    except SettingsError as error:
        return error.faults
    return ()


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new)


def test_the_example_loads_and_says_what_it_does_not_enforce() -> None:
    settings = load(EXAMPLE, {}, now_s=NOW_S)
    assert settings.mode is Mode.PRODUCTION
    assert str(settings.listen.admin) == "127.0.0.1:8081"
    assert settings.plans["pro"].budget is not None
    assert settings.plans["pro"].budget.usd.nano == 500_000_000_000
    assert settings.issuers[0].claims.service_class == "tier"
    said = "\n".join(settings.notices)
    assert "classes.critical: 0.2 of the machine is kept free for it, and no plan names it" in said
    assert "not enforced" not in said


def test_the_shape_names_each_field_of_the_example_and_no_other() -> None:
    """A field added to one side only would be refused, or never be set."""

    def names(data: object) -> set[str]:
        if isinstance(data, dict):
            return set(data) | {name for value in data.values() for name in names(value)}
        if isinstance(data, list):
            return {name for value in data for name in names(value)}
        return set()

    def fields(kind: type[msgspec.Struct]) -> set[str]:
        found = set()
        for field in msgspec.structs.fields(kind):
            found.add(field.encode_name)
            text = str(field.type)
            for name in re.findall(r"gateway\.settings\.shape\.(\w+)", text):
                part = getattr(__import__("gateway.settings.shape", fromlist=[name]), name)
                if isinstance(part, type) and issubclass(part, msgspec.Struct):
                    found |= fields(part)
        return found

    keys = {"acme", "globex", "pro", "search", "critical", "interactive", "batch", "team=search"}
    with_another_batching = {"batch_size", "batch_wait_ms"}
    assert fields(File) == names(tomllib.loads(TEXT)) - keys | with_another_batching
    assert all(f"# {name} = " in TEXT for name in with_another_batching)


@dataclass(frozen=True)
class Case:
    old: str
    new: str
    path: str
    says: str


DEVICE = re.findall(r"^device .*\n", TEXT, re.MULTILINE)[0]
DPOP = re.findall(r"^dpop .*\ndpop_nonce = false", TEXT, re.MULTILINE)[0]
NOT_YET = [
    Case("workers = 1 ", "workers = 2 ", "listen.workers", "2 gateway processes"),
    Case(DEVICE + 'numerics = "fast"', 'device = "cuda"\nnumerics = "invariant"',
         "models[0].numerics", "CUDA"),
    Case(DEVICE + 'numerics = "fast"', 'device = "cuda"\nnumerics = "int8"',
         "models[0].numerics", "CUDA"),
]  # fmt: skip

WRONG = [
    Case('url = ""  ', 'url = "http://h/"  ', "webhooks.url", "https"),
    Case('url = ""  ', 'url = "https://u:p@h/"  ', "webhooks.url", "credentials"),
    Case("hard = true }", 'mode = "soft", hard = true }', "tenants.acme.projects.search.budget.hard", "contradicts"),
    Case("drain_s = 120", "drain = 120", "listen.drain", "Did you mean drain_s?"),
    Case('public  = "127.0.0.1:8080"', 'public = "8080"', "listen.public", "host:port"),
    Case('admin   = "127.0.0.1:8081"', 'admin = "0.0.0.0:8080"', "listen.admin", "another port"),
    Case('hosts   = ["llm.example.com"]', "", "listen.hosts", "is missing"),
    Case('redis_url    = ""', 'redis_url = "http://h"', "state.redis_url", "rediss://HOST"),
    Case('redis_url    = ""', 'redis_url = "redis://"', "state.redis_url", "a host"),
    Case('redis_url    = ""', 'redis_url = "redis://h:70000"', "state.redis_url", "redis://HOST"),
    Case('redis_url    = ""', 'redis_url = "redis://h/x"', "state.redis_url", "database's number"),
    Case('redis_url    = ""', 'redis_url = "unix://h/x"', "state.redis_url", "absolute path"),
    Case('redis_url    = ""', 'redis_url = "rediss://h?ssl_cert_reqs=none"', "state.redis_url",
         "ssl_ca_certs"),
    Case('redis_url    = ""', 'redis_url = "redis://h?socket_timeout=60"', "state.redis_url",
         "nothing behind"),
    Case("gateways     = 1", "gateways = 2", "state.gateways", "redis_url"),
    Case('dirs = ["var/audit"]', 'dirs = ["a", "b", "a"]', "audit.dirs[2]", "apart"),
    Case('dirs = ["var/audit"]', 'dirs = ["a", "a/b"]', "audit.dirs[1]", "apart"),
    Case('dirs = ["var/audit"]', 'dirs = ["a/b", "a"]', "audit.dirs[1]", "apart"),
    Case('dirs = ["var/audit"]', 'dirs = ["a", "b", "c", "d", "e"]', "audit.dirs", "length <= 4"),
    Case('dirs = ["var/audit"]', "dirs = [1]", "audit.dirs[0]", "text"),
    Case('["llm.example.com"]', '["*"]', "listen.hosts[0]", "wildcard"),
    Case('["llm.example.com"]', "[]", "listen.hosts", "length >= 1"),
    *(
        Case("cors_origins = []", f'cors_origins = ["{bad}"]', "listen.cors_origins[0]", "an origin")
        for bad in (
            *("*", "null", "app.example.com", "https://App.example.com", "HTTPS://app.example.com"),
            *("https://app.example.com/", "https://app.example.com:443", "http://app:80"),
            *("https://u@app.example.com", "https://*.example.com", "ftp://app.example.com"),
        )
    ),
    *(
        Case("urls    = []", f'urls = ["{bad}"]', "listen.urls[0]", "https://llm.example.com")
        for bad in (
            *("llm.example.com", "https://h/", "https://h/a/", "https://h/a//b", "https://H"),
            *("https://h:443", "http://h:80/a", "https://h?a", "https://h/a#b", "https://u@h"),
            *("https://h/a/../b", "https://h/%61", "ftp://h", "https://*.h", "https://h:0"),
        )
    ),
    Case('dpop       = "allowed"', 'dpop = "always"', "issuers[0].dpop", "required"),
    Case('dpop       = "allowed"', 'dpop = "required"', "issuers[0].dpop", "[listen] urls"),
    Case(DPOP, 'dpop = "off"\ndpop_nonce = true', "issuers[0].dpop_nonce", "no proof"),
    Case('"sqlite:///var/lockgate.db"', '"postgres://h/d"', "state.database_url", "scheme"),
    Case('"sqlite:///var/lockgate.db"', '"postgresql://me:pw@h"', "state.database_url", "no database"),
    Case(
        '"sqlite:///var/lockgate.db"', '"postgresql://h/d?options=x"', "state.database_url", "options"
    ),
    *(
        Case('"sqlite:///var/lockgate.db"', f'"postgresql://{bad}"', "state.database_url", says)
        for bad, says in (
            ("u:p@[bad/lg", "host or port"),
            ("u:p@127.0.0.1:99999/lg", "host or port"),
            ("u:p@127.0.0.1:abc/lg", "host or port"),
            ("u:p@127.0.0.1:0/lg", "cannot be read"),
            ("u:hun?ter2pw@h/lg", "host or port"),
            ("u:hun/ter2pw@h/lg", "host or port"),
            ("u@h/lg?host=/x&a=ter2pw@h", "cannot be read"),
        )
    ),
    Case('"sqlite:///var/lockgate.db"', '"postgresql://h/d?sslmode=on"', "state.database_url", "sslmode"),
    Case('"sqlite:///var/lockgate.db"', '"sqlite://"', "state.database_url", "keeps money"),
    Case('"sqlite:///var/lockgate.db"', '"mysql://h"', "state.database_url", "keeps money"),
    Case('numerics = "fast"', 'numerics = "slow"', "models[0].numerics", '"invariant"'),
    Case('kv_memory = "auto"', 'kv_memory = "4 GB"', "models[0].kv_memory", "GiB"),
    Case("context_tokens = 8192", 'context_tokens = "8192"', "models[0].context_tokens", "is str"),
    Case('model = "smollm2-135m" ', 'model = "other" ', "models[0].name", "has no price"),
    Case("input = 200_000_000 ", "input = 0.2 ", "prices[0].input", "int"),
    Case("input = 200_000_000 ", "input = -1 ", "prices[0].input", "int >= 0"),
    Case("2026-10-01T00:00:00Z", "2026-10-01T00:00:00", "prices[0].effective", "with its zone"),
    Case("batch_factor = 0.5", "batch_factor = 0.0", "prices[0].batch_factor", "> 0"),
    Case('issuer     = "https', '#"https', "issuers[0].issuer", "is missing"),
    Case('audience   = "lockgate"', "", "issuers[0].audience", "is missing"),
    Case('algorithms = ["ES256"', '#["ES256"', "issuers[0].algorithms", "is missing"),
    Case('["ES256", "EdDSA", "RS256"]', "[]", "issuers[0].algorithms", "length >= 1"),
    Case('["ES256", "EdDSA", "RS256"]', '["HS256"]', "issuers[0].algorithms[0]", "ES256"),
    Case('["ES256", "EdDSA", "RS256"]', '["none"]', "issuers[0].algorithms[0]", "ES256"),
    Case('"https://idp.example.com/" ', '"lockgate:keys"', "issuers[0].issuer", "own"),
    Case('"https://idp.example.com/" ', f'"{dev_issuer.ISSUER}"', "issuers[0].issuer", "own"),
    Case('"https://idp.example.com/" ', f'"{PSEUDONYM}"', "issuers[0].issuer", "not to be named"),
    Case('["at+jwt"]', '["JWT"]', "issuers[0].typ[0]", "at+jwt"),
    Case("leeway_s   = 30", "leeway_s = 301", "issuers[0].leeway_s", "<= 300"),
    Case('jwks       = "https', 'jwks = "http', "issuers[0].jwks", "https://"),
    Case("reserved = 0.2", "reserved = 0.8", "classes", "at most 0.7"),
    Case("floor   = 0.05", "floor = 0.9", "classes", "floors come to 1.1"),
    Case("floor   = 0.05", "", "classes.batch", "bounds nothing"),
    Case("floor   = 0.05", "floor = 0.05\nttft_ms = 9000", "classes.batch.ttft_ms", "others leave"),
    Case("reserved = 0.2 ", "reserved = 0.2\nfloor = 0.1 ", "classes.critical.floor", "one of the two"),
    Case('batching = "continuous"', 'batching = "fair"', "models[0].batching", '"dynamic"'),
    Case('batching = "continuous"', "batch_size = 4", "models[0].batch_size", "of no use"),
    Case('batching = "continuous"', "batch_wait_ms = 4", "models[0].batch_wait_ms", "of no use"),
    Case('batching = "continuous"', 'batching = "static"\nbatch_wait_ms = 9',
         "models[0].batch_wait_ms", "static batching"),
    Case('batching = "continuous"', 'batching = "dynamic"\nbatch_wait_ms = 500',
         "models[0].batch_wait_ms", "classes.critical promises"),
    Case('batching = "continuous"', 'batching = "dynamic"\nbatch_size = 65',
         "models[0].batch_size", "<= 64"),
    Case("floor   = 0.05", "floor = 1.5", "classes.batch.floor", "<= 1.0"),
    Case('models  = ["smollm2-135m"]', 'models = ["gpt"]', "plans.pro.models[0]", "[[models]]"),
    Case('models  = ["smollm2-135m"]', 'models = ["default"]', "plans.pro.models[0]", "an alias"),
    Case('["interactive", "batch"]', '["turbo"]', "plans.pro.classes[0]", "[classes]"),
    Case("rpm = 600", "rpm = 0", "plans.pro.limits.rpm", "int >= 1"),
    Case("max_output_tokens = 2000", "max_output_tokens = 200_000",
         "plans.pro.limits.max_output_tokens", "could never run"),
    Case('usd = "500.00"', "usd = 500.0", "plans.pro.budget.usd", "text in quotes"),
    Case('usd = "500.00"', 'usd = "1e3"', "plans.pro.budget.usd", "decimals"),
    Case('zone = "UTC"', 'zone = "Mars/Olympus"', "plans.pro.budget.zone", "IANA"),
    Case("[0.5, 0.8, 1.0]", "[0.8, 0.5]", "plans.pro.budget.notify_at", "rising"),
    Case('[tenants.globex]\nplan = "pro"', '[tenants.globex]\nplan = "x"', "tenants.globex.plan",
         "[plans]"),
    Case("[tenants.globex]", '[tenants."Glo bex"]', 'tenants."Glo bex"', "valid name"),
    Case('"rolling_24h"', '"week"', "tenants.acme.projects.search.budget.window", "rolling_24h"),
]  # fmt: skip


@pytest.mark.parametrize("case", NOT_YET + WRONG, ids=lambda case: f"{case.path}:{case.new}")
def test_each_fault_is_named_once_with_its_path(case: Case) -> None:
    found = faults_of(changed(case.old, case.new))
    assert [fault.path for fault in found] == [case.path]
    assert case.says in str(found[0])
    assert ("not supported yet" in found[0].wrong) is (case in NOT_YET)


@pytest.mark.parametrize(
    ("url", "shown"),
    (
        ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
        ("redis://:hunter2@h:6379/3", "redis://h:6379/3"),
        ("rediss://lg:hunter2@h?ssl_ca_certs=/hunter2.pem", "rediss://lg@h"),
        ("unix://lg:hunter2@/run/v.sock?db=2", "unix://lg@/run/v.sock"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
    ),
)
def test_a_redis_is_named_and_never_its_password(url: str, shown: str) -> None:
    state = parse(changed('redis_url    = ""', f'redis_url = "{url}"'), "t").state
    assert state.redis_url.text == url
    assert str(state.redis_url) == shown
    assert "hunter2" not in repr(state)


@pytest.mark.parametrize(
    "url", ("ftp://u:hunter2@h", "redis://u:hunter2@h:x", "hunter2", "redis://u:hunter2@h?a=b")
)
def test_a_wrong_redis_url_is_refused_without_being_shown(url: str) -> None:
    (fault,) = faults_of(changed('redis_url    = ""', f'redis_url = "{url}"'))
    assert "hunter2" not in str(fault)
    assert "hunter2" not in str(SettingsError("t", [fault]))


def test_a_redis_in_the_clear_is_told() -> None:
    for url, told in (
        ("redis://h", 1),
        ("rediss://h", 0),
        ("redis://localhost", 0),
        ("unix:///s", 0),
    ):
        file = parse(changed('redis_url    = ""', f'redis_url = "{url}"'), "t")
        assert sum("not encrypted" in each for each in notices(file)) == told


def test_limits_that_could_not_be_counted_exactly_are_refused() -> None:
    (fault,) = faults_of(changed("rpm = 600", "rpm = 75_000_000_001"))
    assert "75000000000" in str(fault)


@pytest.mark.parametrize("device", ("auto", "cpu", "cuda"))
def test_every_device_may_be_asked_for(device: str) -> None:
    """Whether it is there is the executor's to find out."""
    assert faults_of(changed(DEVICE, f'device = "{device}"\n')) == ()


def test_classes_mean_what_their_fields_say() -> None:
    text = changed("ttft_ms = 2000\n", "ttft_ms = 2000\nreserved = 0.1\n").replace(
        "floor   = 0.05 ",
        "floor = 0.05\n[classes.plain]\nitl_ms = 9\n[classes.heavy]\nweight = 4\nfloor = 0.1",
    )
    named = service_classes(parse(text, "t").classes)
    assert [(each.name, each.kind.value, each.weight) for each in named.values()] == [
        ("critical", "reserved", 1.0),
        ("interactive", "reserved", 1.0),
        ("batch", "backfill", None),
        ("plain", "weighted", 1.0),
        ("heavy", "weighted", 4.0),
    ]
    told = {each.name: each for each in workloads(named)}
    assert told["heavy"] == Workload(name="heavy", weight=4.0, floor=0.1)
    assert told["critical"] == Workload(name="critical", reserved=0.2, ttft_ms=500, itl_ms=80)
    assert told["batch"].weight is None


@pytest.mark.parametrize(
    "fields",
    (
        'batching = "static"\nbatch_size = 4',
        'batching = "dynamic"\nbatch_size = 4\nbatch_wait_ms = 20',
        'batching = "dynamic"',
    ),
)
def test_batching_is_told_to_the_executor(fields: str) -> None:
    (model,) = parse(changed('batching = "continuous"', fields), "t").models
    command = executor_command(model, Path("m"), None)
    size, wait = str(model.batch_size or 16), str(model.batch_wait_ms or 50)
    at = command.index("--batching")
    assert command[at : at + 6] == [
        *("--batching", model.batching.value, "--batch-size", size, "--batch-wait-ms", wait)
    ]
    rule = _parser().parse_args([*command[4:], "--socket", "s"])
    assert (rule.batching, rule.batch_size, rule.batch_wait_ms) == (
        model.batching.value,
        int(size),
        int(wait),
    )
    bare = _parser().parse_args(["--socket", "s", "--model", "m"])
    assert (bare.batch_size, bare.batch_wait_ms) == (BATCH_SIZE, BATCH_WAIT_MS)


@pytest.mark.slow
def test_a_folder_of_the_same_name_where_we_stand_is_not_run(tmp_path: Path) -> None:
    planted = tmp_path / "executor"
    planted.mkdir()
    for name in ("__init__", "__main__"):
        (planted / f"{name}.py").write_text("raise SystemExit(99)")
    (model,) = parse(TEXT, "t").models
    command = [*executor_command(model, Path("m"), None), "--help"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m executor")


@pytest.mark.parametrize(("kind", "refused"), (("continuous", 0), ("static", 0), ("dynamic", 1)))
def test_a_wait_that_is_not_named_counts_too(kind: str, refused: int) -> None:
    text = changed('batching = "continuous"', f'batching = "{kind}"')
    text = text.replace("ttft_ms = 500 ", f"ttft_ms = {BATCH_WAIT_MS} ")
    found = [fault.path for fault in faults_of(text)]
    assert found == ["models[0].batch_wait_ms"] * refused


def test_all_faults_are_named_at_once() -> None:
    text = TEXT
    sections = ("listen.d", "issuers", "plans")
    cases = [case for case in WRONG if case.path.startswith(sections) and "usd" not in case.path]
    expected = set()
    for case in cases:
        if text.count(case.old) == 1:
            text = text.replace(case.old, case.new)
            expected.add(case.path)
    assert len(expected) > 10
    assert expected <= {fault.path for fault in faults_of(text)}


def test_a_fault_hides_no_other_in_its_table_and_causes_none_elsewhere() -> None:
    text = changed("workers = 1 ", "wrokers = 1\nworkers = 3 ").replace(
        'path     = "smollm2-135m"', ""
    )
    found = [fault.path for fault in faults_of(text)]
    assert found == ["listen.wrokers", "listen.workers", "models[0].path"]


def test_the_algorithms_are_those_that_tokens_are_verified_with() -> None:
    assert {item.value for item in Algorithm} == set(ALGORITHMS)


def test_duplicates_are_refused() -> None:
    again = '\n[[models]]\nname = "default"\npath = "x"\n'
    assert [fault.wrong for fault in faults_of(TEXT + again)] == [
        "default names two",
        "default has no price",
    ]
    start = TEXT.index("[[prices]]")
    prices = TEXT[start : TEXT.index("[[issuers]]")]
    assert "stands twice" in faults_of(TEXT + "\n" + prices)[0].wrong


def test_a_model_priced_only_in_future_is_unpriced_today() -> None:
    assert not faults_of(TEXT, now_s=NOW_S)
    found = faults_of(TEXT, now_s=1_700_000_000)
    assert [(fault.path, "no price yet" in fault.wrong) for fault in found] == [
        ("models[0].name", True)
    ]


@pytest.mark.parametrize(
    "text",
    ("", "x = ", "listen = 3", "models = 1\nplans = 2", "a = " + "[" * 5000, "[listen]\n[listen]"),
)
def test_whatever_the_text_the_answer_is_faults(text: str) -> None:
    assert faults_of(text)


def test_an_unreadable_file_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"#" * (CONFIG_BYTES_MAX + 1))
    for name, says in (("absent", "cannot be read"), ("latin", "UTF-8"), ("large", "too large")):
        with pytest.raises(SettingsError, match=says):
            load(tmp_path / name, {})


def test_a_state_dir_takes_everything_written_with_it() -> None:
    settings = load(EXAMPLE, {"LOCKGATE_STATE_DIR": "/srv/lg"})
    assert settings.state.dir == Path("/srv/lg")
    assert settings.state.database_url == "sqlite:////srv/lg/lockgate.db"
    assert settings.state.root_key_file == Path("/srv/lg/root.key")
    assert settings.models_dir == Path("/srv/lg/models")


def test_what_was_placed_elsewhere_on_purpose_stays() -> None:
    text = changed('root_key_file = "var/root.key"', 'root_key_file = "/etc/lockgate/root.key"')
    base = load(EXAMPLE, {"LOCKGATE_MODELS_DIR": "/models"})
    moved = with_state_dir(
        msgspec.structs.replace(base, state=parse(text, "t").state),
        Path("/srv"),
        {"LOCKGATE_MODELS_DIR": "/models"},
    )
    assert moved.state.root_key_file == Path("/etc/lockgate/root.key")
    assert moved.models_dir == Path("/models")


def test_model_replaces_the_path_of_the_only_model() -> None:
    settings = development(Path("var"), env={})
    assert with_model(settings, "/m.gguf").models[0].path == "/m.gguf"
    two = msgspec.structs.replace(settings, models=settings.models * 2)
    with pytest.raises(SettingsError, match="--model"):
        with_model(two, "/m.gguf")
    assert with_model(two, None) is two


def test_the_only_model_takes_a_name_and_a_context_as_vllm_calls_them() -> None:
    settings = development(Path("var"), env={})
    (model,) = with_model(settings, None, "gpt-4o", 2048).models
    assert (model.aliases[-1], model.context_tokens) == ("gpt-4o", 2048)
    assert model.name == settings.models[0].name
    assert with_model(settings, None, model.name).models == settings.models
    for wrong in ("", "../etc/passwd", "a b", "x" * 500):
        with pytest.raises(SettingsError, match="--served-model-name"):
            with_model(settings, None, wrong)


def test_development_is_the_example_on_loopback_without_issuers() -> None:
    """So that what one tries is what one later configures."""
    ours, example = development(Path("var"), port=9000, env={}), load(EXAMPLE, {})
    assert (ours.listen.public.port, ours.listen.admin.port) == (9000, 9001)
    assert ours.listen.public.loopback
    assert ours.listen.admin.loopback
    same = ("models", "prices", "classes", "plans", "tenants", "state")
    assert {name: getattr(ours, name) for name in same} == {
        name: getattr(example, name) for name in same
    }
    assert ours.issuers == ()


@pytest.mark.parametrize(("port", "admin"), ((0, None), (65535, None), (9, 9), (80, 70000)))
def test_development_refuses_ports_that_cannot_be(port: int, admin: int | None) -> None:
    with pytest.raises(SettingsError, match=r"--(admin-)?port"):
        development(Path("var"), port=port, admin_port=admin, env={})


def test_facts_carry_every_number() -> None:
    settings: Settings = load(EXAMPLE, {})
    plan = settings.plans["pro"]
    assert limits(plan.limits) == facts.Limits(600, 200_000, 100_000, 32, 8000, 2000, 8)
    assert limits(plan.user_limits) == facts.Limits(rpm=60, concurrent=4)
    assert plan.budget is not None
    assert budget(plan.budget) == facts.Budget(
        500_000_000_000, "calendar_month", "UTC", True, (0.5, 0.8, 1.0)
    )
    row = price(settings.prices[0])
    assert (row.effective_s, row.output, row.batch_factor) == (1_790_812_800, 600_000_000, 0.5)
    assert row.id == "smollm2-135m@1790812800"


def test_a_draft_never_lacks_a_section() -> None:
    with pytest.raises(AssertionError, match="stand-in"):
        decode({}, File, CHECKS)


def test_the_table_in_the_readme_names_each_field_not_supported_yet() -> None:
    readme = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    for case in NOT_YET:
        field = re.sub(r"\[\d\]", "", case.path)
        field = re.sub(r"^plans\.\w+|^classes\.\w+", lambda m: m[0].split(".")[0] + ".*", field)
        assert f"`{field}`" in readme, field


def test_nobody_signs_in_by_the_name_of_who_is_not_named() -> None:
    """Nor do keys and development's tokens."""
    assert PSEUDONYM not in {KEY_ISSUER, dev_issuer.ISSUER, dev_issuer.RULE.issuer}
