"""The tree against the known answers of Certificate Transparency and against the RFC's recursion."""

from __future__ import annotations

import random

import pytest

from security.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_from,
    consistency_spans,
    gather,
    grown,
    inclusion_from,
    inclusion_spans,
    leaf_hash,
    node_hash,
    root_of,
    verify_consistency,
    verify_inclusion,
)

INPUTS = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")  # fmt: skip
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
"""Published with the reference implementation of RFC 6962, whose tree RFC 9162 keeps."""
LEAVES = [leaf_hash(bytes([each])) for each in range(40)]


def naive(leaves: list[bytes]) -> bytes:
    """§2.1.1 word for word."""
    if len(leaves) < 2:
        return leaves[0] if leaves else EMPTY_ROOT
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return node_hash(naive(leaves[:k]), naive(leaves[k:]))


def naive_path(m: int, leaves: list[bytes]) -> list[bytes]:
    """§2.1.3.1."""
    if len(leaves) == 1:
        return []
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if m < k:
        return [*naive_path(m, leaves[:k]), naive(leaves[k:])]
    return [*naive_path(m - k, leaves[k:]), naive(leaves[:k])]


def naive_subproof(m: int, leaves: list[bytes], *, whole: bool) -> list[bytes]:
    """§2.1.4.1."""
    if m == len(leaves):
        return [] if whole else [naive(leaves)]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if m <= k:
        return [*naive_subproof(m, leaves[:k], whole=whole), naive(leaves[k:])]
    return [*naive_subproof(m - k, leaves[k:], whole=False), naive(leaves[:k])]


def test_known_answers() -> None:
    leaves = [leaf_hash(bytes.fromhex(each)) for each in INPUTS]
    assert [root_of(leaves[: n + 1]).hex() for n in range(len(leaves))] == list(ROOTS)
    assert root_of([]) == EMPTY_ROOT
    path = gather(inclusion_spans(5, 8), leaves)
    assert [each.hex() for each in path] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert [each.hex() for each in gather(consistency_spans(6, 8), leaves)] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]


def test_a_tree_that_grows_is_the_tree_made_at_once() -> None:
    tree = Frontier()
    for size, leaf in enumerate(LEAVES):
        assert (tree.root(), len(tree.hashes)) == (naive(LEAVES[:size]), size.bit_count())
        tree = tree.add(leaf)


def test_every_inclusion_proof_is_the_rfcs_and_proves_its_leaf_alone() -> None:
    for size in range(1, 20):
        root = naive(LEAVES[:size])
        for index in range(size):
            proof = gather(inclusion_spans(index, size), LEAVES)
            assert proof == naive_path(index, LEAVES[:size])
            before = grown(Frontier(), LEAVES[:index])
            assert inclusion_from(before, LEAVES[index:size]) == proof
            assert verify_inclusion(LEAVES[index], index, size, proof, root)
            for other in range(-1, size + 2):
                passes = verify_inclusion(LEAVES[index], other, size, proof, root)
                assert passes == (other == index)
            assert not verify_inclusion(LEAVES[index + 1], index, size, proof, root)
            assert not verify_inclusion(LEAVES[index], index, size, [*proof, root], root)
            assert not verify_inclusion(LEAVES[index], index, size, proof[:-1], root) or not proof
            for at in range(len(proof)):
                changed = [*proof[:at], bytes(32), *proof[at + 1 :]]
                assert not verify_inclusion(LEAVES[index], index, size, changed, root)


def test_every_consistency_proof_is_the_rfcs_and_proves_its_beginning_alone() -> None:
    for size in range(1, 20):
        root = naive(LEAVES[:size])
        for old in range(size + 1):
            before = naive(LEAVES[:old])
            proof = gather(consistency_spans(old, size), LEAVES)
            assert proof == (naive_subproof(old, LEAVES[:size], whole=True) if old else [])
            assert verify_consistency(old, before, size, root, proof)
            assert consistency_from(grown(Frontier(), LEAVES[:old]), LEAVES[old:size]) == proof
            assert not verify_consistency(old, bytes(32), size, root, proof)
            assert not verify_consistency(old, before, size, bytes(32), proof) or not old
            assert not verify_consistency(old, before, size, root, [*proof, root])
            for at in range(len(proof)):
                changed = [*proof[:at], bytes(32), *proof[at + 1 :]]
                assert not verify_consistency(old, before, size, root, changed)
                assert not verify_consistency(old, before, size, root, proof[:at])
    assert not verify_consistency(3, root, 2, root, [])
    assert not verify_consistency(-1, root, 2, root, [])


def test_too_few_leaves_prove_nothing() -> None:
    with pytest.raises(ValueError, match="fewer leaves"):
        gather(inclusion_spans(2, 8), LEAVES[:7])
    with pytest.raises(AssertionError):
        Frontier(3, (LEAVES[0], LEAVES[1])).node((1, 2))


def test_a_history_that_was_changed_has_no_proof() -> None:
    """What an honest prover of the changed log can offer does not fit the old root."""
    changed = [leaf_hash(b"changed"), *LEAVES[1:]]
    for old in range(1, 16):
        proof = gather(consistency_spans(old, 16), changed[:16])
        assert not verify_consistency(old, naive(LEAVES[:old]), 16, naive(changed[:16]), proof)


@pytest.mark.parametrize("seed", range(3))
def test_large_trees(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randrange(500, 3000)
    leaves = [draw.randbytes(32) for _ in range(size)]
    root = root_of(leaves)
    assert root == naive(leaves)
    for index in (0, size - 1, draw.randrange(size)):
        proof = gather(inclusion_spans(index, size), leaves)
        assert len(proof) <= size.bit_length()
        assert verify_inclusion(leaves[index], index, size, proof, root)
    old = draw.randrange(1, size)
    proof = gather(consistency_spans(old, size), leaves)
    assert verify_consistency(old, root_of(leaves[:old]), size, root, proof)
