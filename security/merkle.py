"""The Merkle tree of RFC 9162 §2.1: roots, inclusion and consistency proofs, and their checks.

A leaf is H(0x00 ‖ data), a node H(0x01 ‖ left ‖ right), so that neither passes for the other.  A tree
that grows is kept as its frontier (the roots of its perfect subtrees, at most one for each bit of its
size), which is all that appending and the root need.  A proof names ranges of leaves; whoever has the
leaves hashes them in one pass (`gather`).

Pure; standard library alone.  Refuses to know what a leaf is.  Source: RFC 9162 §2.1.1–2.1.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()

Span = tuple[int, int]
"""Leaves from the first number to before the second."""


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """A tree of `size` leaves.  `hashes`: roots of its perfect subtrees, the largest (leftmost) first."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def add(self, leaf: bytes) -> Frontier:
        """With one more leaf, given its hash."""
        kept, size = self.hashes, self.size
        while size & 1:
            leaf, kept, size = node_hash(kept[-1], leaf), kept[:-1], size >> 1
        return Frontier(self.size + 1, (*kept, leaf))

    def root(self) -> bytes:
        if not self.hashes:
            return EMPTY_ROOT
        root = self.hashes[-1]
        for left in self.hashes[-2::-1]:
            root = node_hash(left, root)
        return root

    def node(self, span: Span) -> bytes:
        """The root of one of its perfect subtrees."""
        first = 0
        for at, bit in enumerate(_bits(self.size)):
            if span == (first, first + bit):
                return self.hashes[at]
            first += bit
        raise AssertionError(span)


def _bits(size: int) -> list[int]:
    """The powers of two that make `size`, largest first."""
    return [1 << at for at in reversed(range(size.bit_length())) if size >> at & 1]


def grown(tree: Frontier, leaves: Iterable[bytes]) -> Frontier:
    for leaf in leaves:
        tree = tree.add(leaf)
    return tree


def root_of(leaves: Iterable[bytes]) -> bytes:
    return grown(Frontier(), leaves).root()


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def inclusion_spans(index: int, size: int) -> list[Span]:
    """What a proof of leaf `index` holds, in its order (§2.1.3.1, PATH)."""
    assert 0 <= index < size
    first, last, spans = 0, size, []
    while last - first > 1:
        middle = first + _split(last - first)
        if index < middle:
            spans.append((middle, last))
            last = middle
        else:
            spans.append((first, middle))
            first = middle
    return spans[::-1]


def consistency_spans(old: int, size: int) -> list[Span]:
    """What proves that a tree of `old` leaves begins one of `size` (§2.1.4.1, PROOF)."""
    assert 0 <= old <= size
    if old in {0, size}:
        return []
    first, last, spans, whole = 0, size, [], True
    while last > old:
        middle = first + _split(last - first)
        if old <= middle:
            spans.append((middle, last))
            last = middle
        else:
            spans.append((first, middle))
            first, whole = middle, False
    if not whole:
        spans.append((first, last))
    return spans[::-1]


def gather(spans: Sequence[Span], leaves: Iterable[bytes], *, first: int = 0) -> list[bytes]:
    """The root of each span, in the order given, in one pass over the leaves from number `first` on.
    Spans that a proof names never overlap.  ValueError where there are too few leaves."""
    trees = {span: Frontier() for span in sorted(spans)}
    order = list(trees)
    at = 0
    for index, leaf in enumerate(leaves, first):
        while at < len(order) and index >= order[at][1]:
            at += 1
        if at == len(order):
            break
        if index >= order[at][0]:
            trees[order[at]] = trees[order[at]].add(leaf)
    if any(tree.size != span[1] - span[0] for span, tree in trees.items()):
        raise ValueError("there are fewer leaves than the proof needs")
    return [trees[span].root() for span in spans]


def consistency_from(old: Frontier, leaves: Sequence[bytes]) -> list[bytes]:
    """The proof that `old` begins itself with `leaves` after it: no earlier leaf is needed."""
    spans = consistency_spans(old.size, old.size + len(leaves))
    later = [span for span in spans if span[0] >= old.size]
    found = dict(zip(later, gather(later, leaves, first=old.size), strict=True))
    return [found[span] if span in found else old.node(span) for span in spans]


def inclusion_from(before: Frontier, leaves: Sequence[bytes]) -> list[bytes]:
    """The proof of the first of `leaves`, which come after `before`: no earlier leaf is needed."""
    spans = inclusion_spans(before.size, before.size + len(leaves))
    later = [span for span in spans if span[0] >= before.size]
    found = dict(zip(later, gather(later, leaves, first=before.size), strict=True))
    return [found[span] if span in found else before.node(span) for span in spans]


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether `leaf` (a hash) is number `index` of the tree (§2.1.3.2)."""
    if not 0 <= index < size:
        return False
    at, last, found = index, size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(each, found)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, each)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def verify_consistency(
    old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether the tree of `old` leaves begins the one of `size` (§2.1.4.2)."""
    if not 0 <= old <= size:
        return False
    if old in {0, size}:
        same = old_root == (EMPTY_ROOT if old == 0 else root)
        return same and not proof
    path = [old_root, *proof] if old.bit_count() == 1 else list(proof)
    if not path:
        return False
    at, last = old - 1, size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    before = after = path[0]
    for each in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            before, after = node_hash(each, before), node_hash(each, after)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            after = node_hash(after, each)
        at, last = at >> 1, last >> 1
    return last == 0 and before == old_root and after == root
