"""The audit log in the house and on the command line: directories, names, what an outsider checks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.api.health import behind
from gateway.cli import main
from gateway.recording import AuditGauges, AuditUnusable, audit_folders, open_audit
from gateway.settings import development
from gateway.settings.load import with_state_dir
from gateway.settings.shape import Audit
from security.audit import AuditEvent
from security.audit_sinks import SinkState
from security.audit_walk import segments
from security.keyring import open_keyring
from tenants.tempo import MemoryTempo
from tests.gateway.inhouse import inhouse


def lockgate(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def test_where_the_log_lies(tmp_path: Path) -> None:
    settings = development(state_dir=tmp_path)
    assert audit_folders(settings) == (tmp_path / "audit",)
    dirs = (tmp_path / "a", Path("/elsewhere/b"))
    named = msgspec.structs.replace(settings, audit=Audit(dirs=dirs))
    assert audit_folders(named) == dirs
    moved = with_state_dir(named, tmp_path / "new", {})
    assert audit_folders(moved) == (tmp_path / "new" / "a", Path("/elsewhere/b"))


def test_a_directory_that_falls_behind_is_in_the_log_ready_and_metrics(tmp_path: Path) -> None:
    states = (SinkState("a", current=True), SinkState("b", current=False, lacks=7, reason="deadline"))  # fmt: skip
    registry = CollectorRegistry()
    registry.register(AuditGauges(lambda: states))
    told = generate_latest(registry).decode()
    assert 'lockgate_audit_sink_current{sink="0"} 1.0' in told
    assert 'lockgate_audit_sink_current{sink="1"} 0.0' in told
    assert 'lockgate_audit_sink_lacks_records{sink="1"} 7.0' in told

    class House:
        class audit:  # noqa: N801 — stands for an instance
            @staticmethod
            def sinks() -> tuple[SinkState, ...]:
                return states

        class book:  # noqa: N801 — likewise
            till = None

        tempo = MemoryTempo(lambda: 0)

    assert behind(House) == {"audit": "behind"}  # type: ignore[arg-type]  # all it looks at
    settings = msgspec.structs.replace(
        development(state_dir=tmp_path), audit=Audit(dirs=(tmp_path / "a", tmp_path / "b"))
    )
    said: list[tuple[str, dict[str, object]]] = []
    log = open_audit(
        settings,
        open_keyring(tmp_path / "root.key"),
        lambda: 1000,
        lambda event, **fields: said.append((event, fields)),
    )
    log._sinks._behind(log._sinks._sinks[1], "OSError")
    log.append_blocking(AuditEvent(kind="test.record"))
    log.close()
    assert said[0] == ("audit.sink_lost", {"path": str(tmp_path / "b"), "reason": "OSError", "count": 0})  # fmt: skip


def test_a_folder_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = msgspec.structs.replace(
        development(state_dir=tmp_path),
        audit=Audit(dirs=(tmp_path / "a", tmp_path / "file" / "b")),
    )
    keyring = open_keyring(tmp_path / "root.key")
    with pytest.raises(AuditUnusable, match=r"file/b: Not a directory\. .* \[audit\] dirs"):
        open_audit(settings, keyring, lambda: 1000, lambda *_: None)


def test_a_person_is_named_by_the_tenants_secret_and_by_nothing_once_it_is_shredded(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            for who in ("acme/alice", "acme/bob", "globex/carol"):
                await home.caller(who).chat()
            found = [each["subject"] for each in home.audited() if each["kind"].startswith("request.")]  # fmt: skip
            assert len(set(found)) == len(found) == 3
            assert all(each.startswith("1.") for each in found)
            await home.house.secrets.shred("acme")
            await home.caller("acme/alice").chat()
            last = [each for each in home.audited() if each["kind"].startswith("request.")][-1]
            assert last["tenant"] == "acme"
            assert "subject" not in last

    asyncio.run(run())


# --- the command line


@pytest.fixture
def state(tmp_path: Path) -> Path:
    settings = msgspec.structs.replace(
        development(state_dir=tmp_path),
        audit=Audit(dirs=(tmp_path / "audit", tmp_path / "twin")),
    )
    log = open_audit(settings, open_keyring(tmp_path / "root.key"), lambda: 1000, lambda *_: None)
    for count in range(5):
        log.append_blocking(AuditEvent(kind="test.record", count=count))
    log.close()
    return tmp_path


def test_an_outsider_needs_the_public_key_alone(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--state-dir", str(state))
    assert lockgate("audit", "key", *where) == 0
    public = capsys.readouterr().out.strip()
    assert lockgate("audit", "checkpoint", *where) == 0
    kept = state / "kept"
    kept.write_text(capsys.readouterr().out)
    assert lockgate("audit", "prove", "--index", "3", *where) == 0
    proof = state / "proof"
    proof.write_text(capsys.readouterr().out)
    (state / "root.key").rename(state / "away")
    key = ("--public-key", public)
    assert lockgate("audit", "verify", *where, *key, "--checkpoint", str(kept)) == 0
    assert "6 of them under signed checkpoints" in capsys.readouterr().out
    assert lockgate("audit", "verify", *key, "--proof", str(proof)) == 0
    assert "proves record 3" in capsys.readouterr().out
    assert lockgate("audit", "verify", "--json", *key, "--proof", str(kept)) == 1
    assert msgspec.json.decode(capsys.readouterr().out) == {str(kept): None}
    assert lockgate("audit", "prove", "--index", "6", *where) == 1
    assert "No checkpoint covers record 6" in capsys.readouterr().err
    assert lockgate("audit", "key", *where) == 1
    assert lockgate("audit", "verify", "--public-key", "x", *where) == 1
    assert lockgate("audit", "verify", *key, *where, "--checkpoint", str(proof)) == 1
    assert "is no checkpoint" in capsys.readouterr().err


def test_directories_are_compared(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dirs = ("--dir", str(state / "audit"), "--dir", str(state / "twin"))
    where = ("--root-key", str(state / "root.key"))
    assert lockgate("audit", "verify", *dirs, *where) == 0
    capsys.readouterr()
    path = segments(state / "twin")[0][1]
    path.write_bytes(path.read_bytes().replace(b'"count":2', b'"count":9'))
    assert lockgate("audit", "verify", *dirs, *where) == 1
    said = capsys.readouterr().out
    assert "record 3 is at fault (hash" in said
    assert "differ from record 3 on" in said
    assert lockgate("audit", "verify", "--json", *dirs, *where) == 1
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["differ_at"] == [3]
    assert [each["ok"] for each in told["dirs"]] == [True, False]


def test_there_is_no_checkpoint_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "audit").mkdir()
    assert lockgate("audit", "checkpoint", "--state-dir", str(tmp_path)) == 1
    assert "no checkpoint yet" in capsys.readouterr().err
