"""Money, sizes and addresses are read exactly or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.units import USD_MAX, Address, Memory, Usd, usd_text


@given(st.integers(0, USD_MAX * 10**9))
def test_an_amount_survives_being_written_and_read(nano: int) -> None:
    assert Usd.parse(usd_text(nano)).nano == nano


@pytest.mark.parametrize(
    ("text", "nano"),
    (("0", 0), ("0.000000001", 1), ("500.00", 500 * 10**9), ("0.10", 100_000_000), ("007", 7 * 10**9)),
)  # fmt: skip
def test_usd_is_exact(text: str, nano: int) -> None:
    assert Usd.parse(text).nano == nano


@pytest.mark.parametrize(
    "text",
    ("", "-1", "+1", "1.", ".5", "1e3", "1,000", "0.0000000001", " 1", "1 ", "nan", "٣", "9000000001"),
)  # fmt: skip
def test_usd_refuses_what_is_not_plain(text: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Usd.parse(text)


def test_usd_text_keeps_cents_and_loses_no_digit() -> None:
    assert usd_text(0) == "0.00"
    assert usd_text(12_300_000_001) == "12.300000001"
    assert usd_text(-1_500_000_000) == "-1.50"


@pytest.mark.parametrize(
    ("text", "size"),
    (("auto", None), ("4 GiB", 4 << 30), ("512MiB", 512 << 20), ("1 TiB", 1 << 40)),
)
def test_memory(text: str, size: int | None) -> None:
    assert Memory.parse(text).size_bytes == size


@pytest.mark.parametrize("text", ("", "4", "4 GB", "0 GiB", "-4 GiB", "4.5 GiB", "AUTO"))
def test_memory_refuses_ambiguous_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="GiB"):
        Memory.parse(text)


@pytest.mark.parametrize(
    ("text", "loopback"),
    (
        ("127.0.0.1:8080", True), ("127.9.9.9:1", True), ("localhost:1", True), ("[::1]:1", True),
        ("0.0.0.0:80", False), ("10.0.0.1:80", False), ("[::]:65535", False), ("db.local:9", False),
    ),
)  # fmt: skip
def test_address_knows_this_machine(text: str, loopback: bool) -> None:
    address = Address.parse(text)
    assert address.loopback is loopback
    assert str(address) == text
    assert address.url() == f"http://{text}"


@pytest.mark.parametrize(
    "text",
    ("", ":80", "host", "host:", "host:0", "host:65536", "::1:80", "[x]:1", "a b:1", "h:+1", "h:٣", "-h:1",
     "[fe80::1%eth0]:1", "http://h:1"),
)  # fmt: skip
def test_address_refuses_the_rest(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Address.parse(text)
