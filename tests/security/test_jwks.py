"""Key sets: what is refused as a whole, what is left out, and which key serves which algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from security.jwks import KEYS_MAX, SET_BYTES_MAX, BadKeySet, load
from security.strict import to_base64url
from tests.security.kit import EC_KEY, ec_jwk, ed_jwk, key_set, keys, rsa_jwk, rsa_key


def refused(data: bytes) -> str:
    with pytest.raises(BadKeySet) as caught:
        load(data)
    return str(caught.value)


def number(value: int, size: int) -> str:
    return to_base64url(value.to_bytes(size))


def test_a_good_set() -> None:
    found = keys(ec_jwk(alg="ES256", use="sig"), ed_jwk(key_ops=["verify"]), rsa_jwk(x5t="ignored"))
    assert [key.kid for key in found.keys] == ["ec", "ed", "rsa"]
    assert found.left_out == 0
    assert found.find("ec", "ES256") is found.keys[0]
    assert found.find("ec", "RS256") is None
    assert found.find("rsa", "PS512") is found.keys[2]
    assert found.find("nobody", "ES256") is None


@pytest.mark.parametrize(("crv", "curve", "size", "alg"), (("P-384", ec.SECP384R1(), 48, "ES384"), ("P-521", ec.SECP521R1(), 66, "ES512")))  # fmt: skip
def test_the_other_curves(crv: str, curve: ec.EllipticCurve, size: int, alg: str) -> None:
    numbers = ec.derive_private_key(12345, curve).public_key().public_numbers()
    entry = {"kty": "EC", "crv": crv, "x": number(numbers.x, size), "y": number(numbers.y, size)}
    assert keys(entry).keys[0].algorithms == {alg}


def test_without_a_kid_only_where_there_is_no_choice() -> None:
    assert keys(ec_jwk(), ed_jwk()).find(None, "ES256") is not None
    assert keys(ec_jwk(), ec_jwk(kid="two")).find(None, "ES256") is None
    nameless = {name: value for name, value in ec_jwk().items() if name != "kid"}
    assert keys(nameless).find(None, "ES256") is not None
    assert keys(nameless).find("ec", "ES256") is None


@pytest.mark.parametrize(
    "extra",
    (
        {"use": "enc"},
        {"use": "SIG"},
        {"use": ""},
        {"key_ops": ["encrypt"]},
        {"key_ops": ["sign"]},
        {"key_ops": ["verify", "encrypt"]},
        {"key_ops": []},
        {"use": "sig", "key_ops": ["wrapKey"]},
        {"alg": "ES384"},
        {"alg": "RS256"},
        {"alg": "HS256"},
        {"alg": "none"},
        {"alg": "ES256K"},
        {"alg": ""},
        {"crv": "secp256k1"},
        {"crv": "P-192"},
        {"crv": 256},
        {"kty": "AKP"},
        {"kty": "ec"},
    ),
)
def test_what_is_not_for_us_is_left_out(extra: Mapping[str, object]) -> None:
    found = keys(ec_jwk(**extra), ed_jwk())
    assert [key.kid for key in found.keys] == ["ed"]
    assert found.left_out == 1


def test_other_okp_curves_are_left_out() -> None:
    assert keys(ed_jwk(crv="Ed448"), ec_jwk()).left_out == 1
    assert keys(ed_jwk(crv="X25519"), ec_jwk()).left_out == 1


@pytest.mark.parametrize(
    "extra",
    (
        *({name: "AQAB"} for name in ("d", "p", "q", "dp", "dq", "qi", "oth", "k")),
        {"d": None},
        {"kty": "oct"},
        {"kty": 1},
        {"kty": None},
        {"use": 1},
        {"use": None},
        {"alg": ["ES256"]},
        {"alg": None},
        {"key_ops": "verify"},
        {"key_ops": [1]},
        {"key_ops": ["verify", "verify"]},
        {"key_ops": None},
        {"kid": 7},
        {"kid": ""},
        {"kid": None},
        {"kid": "a b"},
        {"kid": "k" * 257},
        {"kid": "a\n"},
        {"x": "AAAA"},
        {"x": 7},
        {"x": "=" * 43},
        {"y": number(1, 32)},
        {"x": number(0, 32), "y": number(0, 32)},
        {"x": number(1, 33)},
        {"crv": "P-384"},
    ),
)
def test_a_dangerous_or_senseless_key_refuses_the_set(extra: Mapping[str, object]) -> None:
    assert refused(key_set(ec_jwk(**extra), ed_jwk()))


def test_a_private_key_for_another_use_refuses_the_set_too() -> None:
    assert "private" in refused(key_set(ec_jwk(), rsa_jwk(use="enc", d="AQAB", kid="x")))


def test_two_keys_of_one_name_refuse_the_set() -> None:
    assert "kid" in refused(key_set(ec_jwk(), ed_jwk(kid="ec")))
    assert "kid" in refused(key_set(ec_jwk(), rsa_jwk(use="enc", kid="ec")))


def test_an_ed25519_key_has_32_bytes() -> None:
    assert refused(key_set(ed_jwk(x=number(1, 31))))


@pytest.mark.parametrize("e", (1, 3, 17, 65536, 65538, 2**32 + 1))
def test_rsa_exponents(e: int) -> None:
    text = to_base64url(e.to_bytes((e.bit_length() + 7) // 8))
    assert "exponent" in refused(key_set(rsa_jwk(e=text)))


def test_rsa_sizes() -> None:
    n = rsa_key().public_key().public_numbers().n
    for bits in (512, 1024, 2047):
        small = (n >> (2048 - bits)) | 1
        assert "bits" in refused(key_set(rsa_jwk(n=to_base64url(small.to_bytes((bits + 7) // 8)))))
    assert "bits" in refused(key_set(rsa_jwk(n=to_base64url(((1 << 8192) | 1).to_bytes(1025)))))
    assert "exponent" in refused(key_set(rsa_jwk(n=number(n - 1, 256))))
    assert "zero" in refused(key_set(rsa_jwk(n=number(n, 257))))
    assert "zero" in refused(key_set(rsa_jwk(e=number(65537, 4))))


def test_a_modulus_of_the_roca_kind() -> None:
    """Made as the faulty library did: p and q are powers of 65537 modulo the first primes."""
    primes = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83]
    primes += [89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167]
    product = math.prod(primes)
    n = pow(65537, 12345, product)
    n += ((1 << 2047) // product + 1) * product
    n += 0 if n % 2 else product
    assert "ROCA" in refused(key_set(rsa_jwk(n=number(n, 256))))


@pytest.mark.parametrize(
    "data",
    (
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"keys":[]}',
        b'{"keys":{}}',
        b'{"keys":[1]}',
        b'{"keys":[[]]}',
        b'{"keys":[{}]}',
        b'{"keys":[{"kty":"EC"}],"keys":[]}',
        b'\xef\xbb\xbf{"keys":[]}',
        b'{"keys":' + b"[" * 5000,
        b"\xff",
    ),
)
def test_not_a_key_set(data: bytes) -> None:
    assert refused(data)


def test_bounds() -> None:
    many = [ec_jwk(kid=f"k{i}") for i in range(KEYS_MAX + 1)]
    assert len(keys(*many[:-1]).keys) == KEYS_MAX
    assert refused(key_set(*many))
    padded = key_set(ec_jwk())
    assert load(padded + b" " * (SET_BYTES_MAX - len(padded)))
    assert refused(padded + b" " * (SET_BYTES_MAX - len(padded) + 1))


def test_messages_hold_no_key_material() -> None:
    private = EC_KEY.private_numbers().private_value.to_bytes(32)
    message = refused(key_set(ec_jwk(d=to_base64url(private))))
    assert to_base64url(private) not in message
    assert repr(keys(ec_jwk())).count("EllipticCurve") == 0
