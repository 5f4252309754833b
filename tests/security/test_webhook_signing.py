"""Signatures that a receiver with the Standard Webhooks library accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from security.webhook_signing import BadSecret, read_secrets, signature

KNOWN = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "QUFB" * 8


def test_the_published_example(tmp_path: Path) -> None:
    """The vector of the standard's own libraries."""
    (tmp_path / "s").write_text(f"{KNOWN}\n")
    signed = signature(
        read_secrets(tmp_path / "s"),
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        b'{"test": 2432232314}',
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_two_secrets_sign_while_one_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(f"{KNOWN}\n\n{OTHER}\n")
    both = read_secrets(tmp_path / "s")
    signed = signature(both, "m", 1, b"x").split(" ")
    assert signed == [signature([each], "m", 1, b"x") for each in both]


@pytest.mark.parametrize(
    "text",
    ("", "hunter2hunter2hunter2hunter2hunter2", "whsec_hunter2", "whsec_!!!!", "whsec_" + "QUFB" * 4,
     "whsec_" + "QUFB" * 22, f"{KNOWN}\n{KNOWN}\n{OTHER}\n", "x" * 5000),
)  # fmt: skip
def test_what_is_no_secret_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "s").write_text(text)
    with pytest.raises(BadSecret) as why:
        read_secrets(tmp_path / "s")
    assert "hunter2" not in str(why.value)
    with pytest.raises(BadSecret, match="No such file"):
        read_secrets(tmp_path / "absent")
