"""Keys and tags of labels: known answers, and nothing that is used twice."""

from __future__ import annotations

import itertools
import json

import pytest

from policies.scope import labels
from policies.scope.labels import Document, Template, join_all
from security.cache_keys import CacheKeys, derive, narrowing, tag
from security.keyring import Keyring, Purpose
from security.keyring_tenants import SecretGone, TenantSecret, TenantSecrets
from tests.policies.scope import independent
from tests.policies.scope.test_chain import label
from tests.security.helpers import byte_source, run
from tests.security.secrets_in_memory import MemoryStore

KNOWN = json.loads(independent.VECTORS.read_text())
SECRET, PUBLIC, EPOCH = (bytes.fromhex(KNOWN[name]) for name in ("secret", "public", "epoch"))
LEASE, FEES = Document("doc_lease", 3, 1), Document("doc_fees", 1, 1)


def keys(epoch: bytes = EPOCH, version: int = 1) -> CacheKeys:
    secrets = {"acme": SECRET, "globex": b"g" * 32, "straße": SECRET, "t": SECRET}
    return CacheKeys(PUBLIC, epoch, lambda tenant: TenantSecret(tenant, version, secrets[tenant]))


@pytest.mark.parametrize("name", KNOWN["labels"])
def test_known_keys_and_tags(name: str) -> None:
    known = KNOWN["labels"][name]
    found = keys().scope(label(known["label"]))
    assert (found.tag.hex(), found.key.hex()) == (known["tag"], known["key"])


def test_key_and_tag_of_equal_labels_differ_by_secret_and_only_the_key_by_epoch() -> None:
    one = labels.user("acme", "idp", "alice")
    later = keys(b"f" * 16).scope(one)
    assert later.key != keys().scope(one).key
    assert later.tag == keys().scope(one).tag
    assert derive(SECRET, one.encoded(), EPOCH) != derive(PUBLIC, one.encoded(), EPOCH)
    assert tag(SECRET, one.encoded()) != tag(PUBLIC, one.encoded())


def test_no_two_labels_share_a_key_or_a_tag_and_no_key_is_a_tag() -> None:
    of = [
        labels.public("chat", 1),
        *(labels.tenant(t, "support", 7) for t in ("acme", "globex")),
        *(labels.user(t, "idp", "alice") for t in ("acme", "globex")),
        labels.documents("acme", {LEASE}),
        labels.documents("acme", {LEASE, FEES}),
        labels.user("acme", "idp", "alice", b"n" * 32),
    ]
    scopes = [keys().scope(each) for each in of]
    assert len({each.key for each in scopes} | {each.tag for each in scopes}) == 2 * len(of)


def test_a_tenant_without_a_secret_has_no_key() -> None:
    with pytest.raises(KeyError):
        keys().scope(labels.user("initech", "idp", "peter"))


def test_as_the_house_wires_it() -> None:
    async def test() -> None:
        ring = Keyring((b"1" * 32, b"2" * 32), b"e" * 16)
        secrets = TenantSecrets(ring, MemoryStore(), rng=byte_source())
        wired = CacheKeys(ring.derive(Purpose.CACHE_PUBLIC), ring.epoch, secrets.current)
        alice = labels.user("acme", "idp", "alice")
        with pytest.raises(SecretGone):
            wired.scope(alice)
        await secrets.ensure("acme")
        first = wired.scope(alice)
        await secrets.rotate("acme")
        assert wired.scope(alice).key != first.key
        await secrets.shred("acme")
        with pytest.raises(SecretGone):
            wired.scope(alice)
        assert wired.scope(labels.public("chat", 1))

    run(test())


def test_an_epoch_has_a_length() -> None:
    with pytest.raises(AssertionError):
        derive(SECRET, labels.BOTTOM.encoded(), b"")


def test_covers_are_all_that_a_right_rests_on() -> None:
    mine = keys()
    label = join_all(
        (
            labels.public("chat", 1),
            labels.tenant("acme", "support", 7),
            labels.documents("acme", {LEASE, FEES}),
            labels.user("acme", "idp", "alice"),
        )
    )
    assert set(mine.covers(label)) == {
        mine.of_template(Template(None, "chat", 1)),
        mine.of_template(Template("acme", "support", 7)),
        mine.of_document("acme", LEASE),
        mine.of_document("acme", FEES),
        mine.of_secret("acme", 1),
        mine.of_person("acme", "idp", "alice"),
    }
    assert mine.of_person("acme", "idp", "alice") not in {
        mine.of_person(*other)
        for other in (("globex", "idp", "alice"), ("acme", "idp2", "alice"), ("acme", "idp", "bob"))
    }
    assert list(mine.covers(label)) == sorted(mine.covers(label))
    assert mine.covers(labels.public("chat", 1)) == (mine.of_template(Template(None, "chat", 1)),)
    assert mine.of_secret("acme", 2) in keys(version=2).covers(label)


def test_no_two_things_have_one_cover() -> None:
    mine = keys()
    found = [
        *(mine.of_document(tenant, LEASE) for tenant in ("acme", "globex")),
        mine.of_document("acme", Document("doc_lease", 4, 1)),
        mine.of_document("acme", Document("doc_lease", 3, 2)),
        mine.of_document("acme", Document("doc_other", 3, 1)),
        *(mine.of_template(Template(owner, "t", 1)) for owner in (None, "acme", "globex")),
        mine.of_template(Template(None, "t", 2)),
        *(mine.of_secret(tenant, 1) for tenant in ("acme", "globex")),
        mine.of_secret("acme", 2),
    ]
    assert len(set(found)) == len(found)


def test_a_cover_outlives_the_secret_so_that_a_revocation_reaches_who_began_before() -> None:
    later = CacheKeys(PUBLIC, b"f" * 16, lambda tenant: TenantSecret(tenant, 2, b"new" + SECRET))
    assert later.of_document("acme", LEASE) == keys().of_document("acme", LEASE)


def test_what_a_client_calls_its_users_divides_and_never_merges() -> None:
    names = (None, "", "a", "b", "ab")
    found = {
        narrowing(SECRET, safety_identifier=one, user=two, prompt_cache_key=three)
        for one, two, three in itertools.product(names, repeat=3)
    }
    assert len(found) == len(names) ** 3
    assert None in found
    one = {"safety_identifier": "a", "user": None, "prompt_cache_key": None}
    assert narrowing(SECRET, **one) != narrowing(PUBLIC, **one)
    assert len(narrowing(SECRET, **one) or b"") == 32
