"""The root key's file, and what is derived from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from security import keyring
from security.keyring import KeyringError, Purpose, create_secret_file, open_keyring
from security.strict import base64url
from tests.security.helpers import byte_source


def refused(path: Path) -> str:
    with pytest.raises(KeyringError) as caught:
        open_keyring(path)
    return str(caught.value)


def test_created_once_private_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "root.key"
    first, second = open_keyring(path), open_keyring(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.derive(Purpose.AUDIT) == second.derive(Purpose.AUDIT)
    assert first.id == second.id
    assert first.epoch != second.epoch
    assert [entry.name for entry in path.parent.iterdir()] == ["root.key"]


def test_each_purpose_and_context_has_its_own_key(tmp_path: Path) -> None:
    ring = open_keyring(tmp_path / "root.key", rng=byte_source())
    derived = [
        ring.derive(purpose, context) for purpose in Purpose for context in (b"", b"a", b"ab")
    ]
    assert len(set(derived)) == len(derived)
    assert all(len(key) == 32 for key in derived)


def test_the_derivation_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    ring = open_keyring(path, rng=byte_source())
    root = base64url(path.read_text().split()[1])
    info = b"lockgate/v1" + b"\0\0\0\x05audit" + b"\0\0\0\x03ctx"
    expected = HKDF(SHA256(), 32, salt=None, info=info).derive(root)
    assert ring.derive(Purpose.AUDIT, b"ctx") == expected


def test_nothing_shows_the_root(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    ring = open_keyring(path)
    secret = path.read_text().split()[1]
    assert secret not in repr(ring)
    assert base64url(secret).hex() not in repr(ring)
    assert repr(ring.epoch) not in repr(ring)


def test_pseudonyms_are_stable_and_keyed(tmp_path: Path) -> None:
    name = open_keyring(tmp_path / "a").pseudonymiser()
    other = open_keyring(tmp_path / "b").pseudonymiser()
    assert name("alice") == name("alice") != name("bob")
    assert name("alice") != other("alice")
    assert len(name("alice")) == 32


def test_retry_keys_are_stable_keyed_and_of_all_their_parts(tmp_path: Path) -> None:
    made = open_keyring(tmp_path / "a").retry_keys()
    again = open_keyring(tmp_path / "a").retry_keys()
    other = open_keyring(tmp_path / "b").retry_keys()
    assert made(("acme", "alice", "k")) == again(("acme", "alice", "k"))
    assert len(made(("acme",))) == 16
    assert made(("acme", "k")) != other(("acme", "k"))
    assert made(("ab", "c")) != made(("a", "bc")), "no two lists of parts are one"


@pytest.mark.parametrize("mode", (0o640, 0o604, 0o644, 0o660, 0o666, 0o610, 0o601))
def test_a_file_that_others_can_use_is_refused_and_left_alone(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "root.key"
    open_keyring(path)
    path.chmod(mode)
    assert "chmod 600" in refused(path)
    assert path.stat().st_mode & 0o777 == mode


def test_an_empty_or_foreign_file_is_refused_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    good = (open_keyring(path), path.read_text())[1]
    for text in (
        "",
        "\n",
        "x",
        good[:-5],
        good.split()[1],
        good + good,
        good.replace("v1", "v2"),
        "é" * 20,
        "A" * 2000,
    ):
        path.write_text(text)
        assert str(path) in refused(path)
        assert path.read_text() == text


def test_links_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    open_keyring(real)
    for name, make in (
        ("link", lambda p: p.symlink_to(real)),
        ("dangling", lambda p: p.symlink_to(tmp_path / "nowhere")),
        ("folder", lambda p: p.mkdir(0o700)),
        ("pipe", lambda p: os.mkfifo(p, 0o600)),
    ):
        path = tmp_path / name
        make(path)
        assert str(path) in refused(path)
    assert not (tmp_path / "nowhere").exists()


def test_anothers_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "root.key"
    open_keyring(path)
    os.chown(path, 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        os, "geteuid", lambda: 1
    )
    assert "another account" in refused(path)


def test_of_two_who_create_at_once_one_wins_and_both_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "root.key"
    assert create_secret_file(path, b"first", rng=byte_source())
    assert not create_secret_file(path, b"second", rng=byte_source())
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["root.key"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    def taken(size: int) -> bytes:
        return bytes(size)

    (tmp_path / f".root.key.{bytes(8).hex()}").touch()
    with pytest.raises(KeyringError, match="cannot be created"):
        create_secret_file(tmp_path / "root.key", b"x", rng=taken)


def test_parts_of_a_derivation_cannot_be_shifted() -> None:
    assert keyring._sized(b"ab") + keyring._sized(b"c") != keyring._sized(b"a") + keyring._sized(
        b"bc"
    )
