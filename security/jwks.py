"""JSON Web Key Sets, read strictly: what a set may hold, and which key may verify which algorithm.

Pure: bytes in, keys out; `jwks_source` fetches them.  Two kinds of trouble are told apart.  What is
dangerous or senseless (a private or symmetric key in a public set, two keys of one name, a weak or
malformed key) refuses the whole set, for its issuer has made a mistake that we must not build on.
What is merely not for us (an encryption key, a curve or type that we do not use) is left out, as
RFC 7517 §5 asks, since issuers publish such keys beside ours.
Source: RFC 7517, RFC 7518 §6, RFC 8037, NIST SP 800-56B §6.2, SECURITY.md §0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurve,
    EllipticCurvePublicKey,
    EllipticCurvePublicNumbers,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers

from security.strict import NotStrict, base64url, json_object, to_base64url

SET_BYTES_MAX = 256 * 1024
KEYS_MAX = 64
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
ALGORITHMS = (
    *("ES256", "ES384", "ES512", "EdDSA"),
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
)
PublicKey = EllipticCurvePublicKey | Ed25519PublicKey | RSAPublicKey

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Mapping[str, tuple[Callable[[], EllipticCurve], int, str]] = MappingProxyType(
    {
        "P-256": (SECP256R1, 32, "ES256"),
        "P-384": (SECP384R1, 48, "ES384"),
        "P-521": (SECP521R1, 66, "ES512"),
    }
)
_SECRET_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_KID = re.compile(r"[\x21-\x7e]{1,256}")
_THUMBPRINT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x")}
)
_MEMBER_CHARS_MAX = 128
# Generators and small primes of the ROCA fingerprint (Nemec et al., CCS 2017, §3): a vulnerable
# modulus is, modulo each of these primes, a power of 65537.
_ROCA_PRIMES = (
    *(3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83),
    *(89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167),
)
_ROCA_RESIDUES = tuple(
    (prime, frozenset(pow(65537, power, prime) for power in range(prime))) for prime in _ROCA_PRIMES
)


class BadKeySet(ValueError):
    """The set is refused as a whole.  The message names no key material."""


@dataclass(frozen=True, slots=True)
class VerifyKey:
    """A public key bound to the algorithms that it may verify, so that no token chooses for it."""

    kid: str | None
    algorithms: frozenset[str]
    key: PublicKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    keys: tuple[VerifyKey, ...]
    left_out: int = 0
    """Well-formed keys that are not for us."""

    def find(self, kid: str | None, alg: str) -> VerifyKey | None:
        """The key of that name for that algorithm.  A token without `kid` is served only where the
        set leaves no choice."""
        fit = [key for key in self.keys if alg in key.algorithms]
        if kid is not None:
            fit = [key for key in fit if key.kid == kid]
        return fit[0] if len(fit) == 1 else None


def load_key(entry: Mapping[str, object]) -> VerifyKey | None:
    """One key by itself, as strictly as in a set; None where it is not for us.  Raises BadKeySet."""
    return _verify_key(entry, None)


def public_jwk(key: EllipticCurvePublicKey | Ed25519PublicKey) -> dict[str, str]:
    """A P-256 or Ed25519 key as a set holds it."""
    if isinstance(key, Ed25519PublicKey):
        return {"crv": "Ed25519", "kty": "OKP", "x": to_base64url(key.public_bytes_raw())}
    assert key.curve.name == SECP256R1.name
    numbers = key.public_numbers()
    x, y = (to_base64url(each.to_bytes(32)) for each in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def thumbprint(entry: Mapping[str, object]) -> str:
    """RFC 7638, of an EC or OKP key; its numbers are in canonical base64url, so a key has one.  Raises
    BadKeySet."""
    kty = entry.get("kty")
    names = _THUMBPRINT.get(kty) if isinstance(kty, str) else None
    if names is None:
        raise BadKeySet("a thumbprint is of an EC or OKP key")
    members = {name: entry.get(name) for name in names}
    if not all(
        isinstance(value, str) and len(value) <= _MEMBER_CHARS_MAX for value in members.values()
    ):
        raise BadKeySet("a key's members must be short strings")
    text = json.dumps(members, separators=(",", ":"), sort_keys=True)
    return to_base64url(hashlib.sha256(text.encode()).digest())


def load(data: bytes) -> KeySet:
    """Raises BadKeySet."""
    if len(data) > SET_BYTES_MAX:
        raise BadKeySet(f"a key set has at most {SET_BYTES_MAX} bytes")
    try:
        document = json_object(data, depth_max=6)
    except NotStrict as error:
        raise BadKeySet(f"the key set is {error}") from error
    entries = document.get("keys")
    if not isinstance(entries, list) or not 0 < len(entries) <= KEYS_MAX:
        raise BadKeySet(f"'keys' must be a list of 1 to {KEYS_MAX} keys")
    keys: list[VerifyKey] = []
    names: set[str] = set()
    for entry in entries:
        if not isinstance(entry, dict):
            raise BadKeySet("a key must be an object")
        kid = _kid(entry)
        if kid is not None and kid in names:
            raise BadKeySet("two keys have one kid")
        if kid is not None:
            names.add(kid)
        key = _verify_key(entry, kid)
        if key is not None:
            keys.append(key)
    return KeySet(tuple(keys), left_out=len(entries) - len(keys))


def _kid(entry: Mapping[str, object]) -> str | None:
    kid = entry.get("kid")
    if "kid" not in entry:
        return None
    if not isinstance(kid, str) or not _KID.fullmatch(kid):
        raise BadKeySet("a kid must be 1 to 256 printable ASCII characters")
    return kid


def _verify_key(entry: Mapping[str, object], kid: str | None) -> VerifyKey | None:
    kty = entry.get("kty")
    if not isinstance(kty, str):
        raise BadKeySet("kty must be a string")
    if kty == "oct" or _SECRET_MEMBERS & entry.keys():
        raise BadKeySet("a public key set must hold no private or symmetric key")
    if not _is_for_verifying(entry):
        return None
    if kty == "EC":
        made = _ec(entry)
    elif kty == "OKP":
        made = _okp(entry)
    elif kty == "RSA":
        made = _rsa(entry)
    else:
        return None
    if made is None:
        return None
    key, algorithms = made
    alg = entry.get("alg")
    if "alg" in entry:
        if not isinstance(alg, str):
            raise BadKeySet("alg must be a string")
        algorithms &= {alg}  # an algorithm of another type or curve leaves nothing
    return VerifyKey(kid, algorithms, key) if algorithms else None


def _is_for_verifying(entry: Mapping[str, object]) -> bool:
    use, ops = entry.get("use"), entry.get("key_ops")
    if "use" in entry and not isinstance(use, str):
        raise BadKeySet("use must be a string")
    if "key_ops" in entry and not (
        isinstance(ops, list)
        and all(isinstance(op, str) for op in ops)
        and len(set(ops)) == len(ops)
    ):
        raise BadKeySet("key_ops must be a list of different strings")
    return use in {None, "sig"} and (not isinstance(ops, list) or ops == ["verify"])


def _bytes(entry: Mapping[str, object], name: str) -> bytes:
    text = entry.get(name)
    if not isinstance(text, str):
        raise BadKeySet(f"member {name} must be a string")
    try:
        return base64url(text)
    except NotStrict as error:
        raise BadKeySet(f"member {name} is {error}") from error


def _ec(entry: Mapping[str, object]) -> tuple[PublicKey, frozenset[str]] | None:
    crv = entry.get("crv")
    known = _CURVES.get(crv) if isinstance(crv, str) else None
    if known is None:
        return None
    curve, size, alg = known
    x, y = _bytes(entry, "x"), _bytes(entry, "y")
    if len(x) != size or len(y) != size:
        raise BadKeySet(f"a {crv} coordinate has {size} bytes")
    numbers = EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), curve())
    try:
        return numbers.public_key(), frozenset({alg})
    except ValueError as error:
        raise BadKeySet("the point is not on its curve") from error


def _okp(entry: Mapping[str, object]) -> tuple[PublicKey, frozenset[str]] | None:
    if entry.get("crv") != "Ed25519":
        return None
    x = _bytes(entry, "x")
    if len(x) != 32:
        raise BadKeySet("an Ed25519 key has 32 bytes")
    return Ed25519PublicKey.from_public_bytes(x), frozenset({"EdDSA"})


def _rsa(entry: Mapping[str, object]) -> tuple[PublicKey, frozenset[str]] | None:
    n_bytes, e_bytes = _bytes(entry, "n"), _bytes(entry, "e")
    n, e = int.from_bytes(n_bytes), int.from_bytes(e_bytes)
    if not RSA_BITS_MIN <= n.bit_length() <= RSA_BITS_MAX:
        raise BadKeySet(f"an RSA modulus has {RSA_BITS_MIN} to {RSA_BITS_MAX} bits")
    if not 65537 <= e < 2**32 or not e % 2 or not n % 2:
        raise BadKeySet("an RSA exponent is odd, at least 65537 and below 2**32")
    if n_bytes[0] == 0 or e_bytes[0] == 0:
        raise BadKeySet("an RSA number has no leading zero byte")
    if all(n % prime in residues for prime, residues in _ROCA_RESIDUES):
        raise BadKeySet("the RSA modulus is of the ROCA kind and can be factored")
    return RSAPublicNumbers(e, n).public_key(), _RSA
