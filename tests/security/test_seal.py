"""Sealed texts: only what was written, only where it was written, and nothing after a shred."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from security.keyring import Keyring
from security.keyring_tenants import SecretGone, TenantSecrets
from security.seal import Place, SealBroken, SealPurpose, Seals, secret_version
from tests.security.helpers import byte_source, run
from tests.security.secrets_in_memory import MemoryStore

PLACE = Place(SealPurpose.DOCUMENT, "acme", "doc_1", 3)
TEXT = "canary: the rent is 4,200 a month, £"


@dataclass
class Sealing:
    secrets: TenantSecrets
    seals: Seals = field(init=False)

    def __post_init__(self) -> None:
        self.seals = Seals(b"p" * 32, self.secrets.current, self.secrets.at, byte_source())


async def sealing() -> Sealing:
    keyring = Keyring((b"r" * 32, b"s" * 32), b"e" * 16)
    secrets = TenantSecrets(keyring, MemoryStore(), rng=byte_source())
    await secrets.ensure("acme")
    await secrets.ensure("globex")
    return Sealing(secrets)


def test_what_is_sealed_opens_in_its_place_alone() -> None:
    async def story() -> None:
        seals = (await sealing()).seals
        record = seals.seal(PLACE, TEXT)
        assert seals.open(PLACE, record) == TEXT
        assert b"canary" not in record
        for elsewhere in (
            replace(PLACE, purpose=SealPurpose.TEMPLATE),
            replace(PLACE, tenant="globex"),
            replace(PLACE, tenant=None),
            replace(PLACE, id="doc_2"),
            replace(PLACE, version=4),
        ):
            with pytest.raises(SealBroken):
                seals.open(elsewhere, record)
        assert seals.seal(PLACE, TEXT) != record  # a nonce of its own

    run(story())


def test_no_byte_of_a_record_can_be_altered_or_cut() -> None:
    async def story() -> None:
        seals = (await sealing()).seals
        record = seals.seal(PLACE, "x")
        for at in range(len(record)):
            altered = bytearray(record)
            altered[at] ^= 1
            with pytest.raises((SealBroken, SecretGone)):
                seals.open(PLACE, bytes(altered))
            with pytest.raises(SealBroken):
                seals.open(PLACE, record[:at])

    run(story())


def test_a_rotated_secret_opens_and_a_destroyed_one_does_not() -> None:
    async def story() -> None:
        home = await sealing()
        old = home.seals.seal(PLACE, TEXT)
        await home.secrets.rotate("acme")
        new = home.seals.seal(PLACE, TEXT)
        assert (secret_version(old), secret_version(new)) == (1, 2)
        assert home.seals.open(PLACE, old) == home.seals.open(PLACE, new) == TEXT
        await home.secrets.retire("acme", 1)
        with pytest.raises(SecretGone):
            home.seals.open(PLACE, old)
        await home.secrets.shred("acme")
        with pytest.raises(SecretGone):
            home.seals.open(PLACE, new)
        with pytest.raises(SecretGone):
            home.seals.seal(PLACE, TEXT)

    run(story())


def test_the_operators_texts_are_sealed_under_the_keyrings_secret() -> None:
    async def story() -> None:
        home = await sealing()
        place = Place(SealPurpose.TEMPLATE, None, "tmpl_1", 1)
        record = home.seals.seal(place, TEXT)
        assert secret_version(record) == 0
        assert home.seals.open(place, record) == TEXT
        with pytest.raises(SealBroken):
            replace(home.seals, public=b"q" * 32).open(place, record)
        with pytest.raises(SealBroken):
            home.seals.open(replace(place, tenant="acme"), record)
        assert "p" * 8 not in repr(home.seals)

    run(story())
