"""A root key is added, used beside the old one, and dropped when nothing needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from security.keyring import ROOTS_MAX, KeyringError, Purpose, open_keyring, roots_text
from security.keyring_roots import add_root, drop_root
from tests.security.helpers import byte_source


def made(path: Path) -> Path:
    open_keyring(path)
    return path


def refused(path: Path, root_id: str, *in_use: str) -> str:
    before = path.read_text()
    with pytest.raises(KeyringError) as caught:
        drop_root(path, root_id, in_use=in_use)
    assert path.read_text() == before
    return str(caught.value)


def test_an_added_root_wraps_and_changes_nothing_else(tmp_path: Path) -> None:
    path = made(tmp_path / "root.key")
    before = open_keyring(path)
    added = add_root(path)
    after = open_keyring(path)
    assert after.root_ids == (*before.root_ids, added)
    assert after.id == before.id
    assert [after.derive(each) for each in Purpose] == [before.derive(each) for each in Purpose]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["root.key"]


def test_each_root_derives_its_own(tmp_path: Path) -> None:
    path = made(tmp_path / "root.key")
    add_root(path)
    ring = open_keyring(path)
    keys = {ring.derive(Purpose.TENANT_SECRETS, b"x", root=each) for each in ring.root_ids}
    assert len(keys) == 3
    assert ring.derive(Purpose.TENANT_SECRETS, b"x") in keys
    with pytest.raises(KeyringError, match="Root key 0011 is not in the root key file"):
        ring.derive(Purpose.TENANT_SECRETS, b"x", root="0011")


def test_a_root_between_is_dropped_and_the_ends_never(tmp_path: Path) -> None:
    path = made(tmp_path / "root.key")
    first, second = open_keyring(path).root_ids
    assert "there is none" in refused(path, second)
    third = add_root(path)
    for end in (first, third, "0011"):
        assert "cannot be dropped" in refused(path, end)
    assert "still wraps" in refused(path, second, second)
    drop_root(path, second, in_use=(third,))
    assert open_keyring(path).root_ids == (first, third)


def test_there_is_a_bound(tmp_path: Path) -> None:
    path = made(tmp_path / "root.key")
    path.write_bytes(roots_text([byte_source(each)(32) for each in range(ROOTS_MAX - 1)]))
    add_root(path)
    with pytest.raises(KeyringError, match="Drop those"):
        add_root(path)
    assert len(open_keyring(path).root_ids) == ROOTS_MAX


def test_a_file_of_one_root_is_read_and_grows(tmp_path: Path) -> None:
    path = made(tmp_path / "root.key")
    path.write_text(path.read_text().split("\n")[0] + "\n")
    ring = open_keyring(path)
    assert ring.root_ids == (ring.id,)
    added = add_root(path)
    assert open_keyring(path).root_ids == (ring.id, added)


@pytest.mark.parametrize("twist", ("twice", "cut", "blank", "foreign", "many"))
def test_a_file_with_one_bad_line_is_refused_whole(tmp_path: Path, twist: str) -> None:
    path = made(tmp_path / "root.key")
    good = path.read_text()
    line = good.split("\n")[0] + "\n"
    many = roots_text([byte_source(each)(32) for each in range(ROOTS_MAX + 1)]).decode()
    text = {
        "twice": good + line,
        "cut": good[:-3] + "\n",
        "blank": good + "\n",
        "foreign": good + "ssh-ed25519 AAAA\n",
        "many": many,
    }[twist]
    path.write_text(text)
    with pytest.raises(KeyringError, match="not a Lockgate root key"):
        open_keyring(path)
    with pytest.raises(KeyringError, match="not a Lockgate root key"):
        add_root(path)
    assert path.read_text() == text
