"""What it costs to key, find and keep a prompt's blocks (`isolation_command` prints it).

The chain of a long prompt, alone and beside the same blocks hashed without a key, and what a request
adds before it: keys, tags and covers of its labels, the context's digest.  Processor time of one
thread: what waits for a busy machine does not count, what shares its caches does.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from executor.block_manager import BlockManager
from executor.contract import Cause, Quota, Quotas
from executor.keeper import Keeper
from executor.scheduler.protocol import Chunk
from executor.sequence import Sequence as Sequence_
from policies.scope import labels
from policies.scope.blocks import Segment, rising
from policies.scope.chain import begin
from policies.scope.context import Asked, Context
from policies.scope.encoding import pack
from policies.scope.labels import Document
from security.cache_keys import CacheKeys
from security.keyring_tenants import TenantSecret
from tests.executor.fakes import COMPUTES
from tests.executor.labelled import labelled

SHARED_BLOCKS = 2 + 8 + 64


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    least_ms: float
    median_ms: float


def figures(tokens: int, block_tokens: int, rounds: int) -> list[Figure]:
    whole = tokens - tokens % block_tokens
    if whole <= SHARED_BLOCKS * block_tokens:
        raise ValueError(f"a prompt of {tokens} tokens is all shared prefix; ask for more --tokens")
    secret = TenantSecret("acme", 1, os.urandom(32))
    keys = CacheKeys(os.urandom(32), os.urandom(16), lambda _: secret)
    user = labels.user("acme", "idp", "alice")
    prompt = (
        Segment(labels.public("chat", 1), 2 * block_tokens),
        Segment(labels.tenant("acme", "support", 7), 8 * block_tokens),
        Segment(labels.documents("acme", {Document("doc", 3, 1)}), 64 * block_tokens),
        Segment(user, whole - SHARED_BLOCKS * block_tokens),
    )
    assert prompt[-1].tokens > 0, (
        "the prompt is shorter than its shared prefix; ask for more tokens"
    )
    ids = [(7919 * at) % 49_152 for at in range(whole)]
    parts = [step.label for step in rising(prompt)]
    asked = Asked(
        tokenizer_digest=bytes(32),
        template_digest=bytes(32),
        tools_digest=None,
        locale=None,
        region=None,
        safety_policy=None,
        safety_policy_version=None,
        flags=frozenset(),
    )
    context = Context(
        asked_digest=asked.digest(),
        weights_digest=bytes(32),
        adapter_digest=None,
        dtype="float32",
        numerics="invariant",
        kernel_config="cpu",
        block_tokens=block_tokens,
    )
    scope = keys.scope(user)

    def unkeyed() -> None:
        packed, head, size = pack(ids), bytes(32), 4 * block_tokens
        for start in range(0, len(packed), size):
            head = hashlib.sha256(head + packed[start : start + size]).digest()

    return [
        _timed(
            "chain of the whole prompt (HMAC-SHA-256)",
            lambda: begin(scope, context.digest(), block_tokens).extend(scope, ids),
            rounds,
        ),
        _timed("the same blocks in plain SHA-256, for comparison", unkeyed, rounds),
        _timed("its labels, rising", lambda: rising(prompt), rounds),
        _timed(
            f"keys and tags of its {len(parts)} labels",
            lambda: [keys.scope(each) for each in parts],
            rounds,
        ),
        _timed("covers of these", lambda: [keys.covers(each) for each in parts], rounds),
        _timed("context's digests", lambda: (asked.digest(), context.digest()), rounds),
        *kept(ids, block_tokens, rounds),
    ]


def kept(ids: Sequence[int], block_tokens: int, rounds: int) -> list[Figure]:
    """What the executor does with a prompt: find nothing, keep all of it (evicting as much), find and compare
    all of it, let go of it."""
    count = len(ids) // block_tokens
    blocks = BlockManager(2 * count + 2, block_tokens, lambda _: None, count + 1)
    keeper = Keeper(blocks, COMPUTES, lambda _: True)
    keeper.order(0, Quotas(quotas=(Quota(owner="a", part=1.0, pinned=0.0),)))
    list(keeper.obey((), lambda _: None))
    turn = itertools.count(1)

    def request(prompt: Sequence[int]) -> Sequence_:
        job = labelled(next(turn), prompt)
        seq = Sequence_((0, job.request), job, job.request, 0)
        keeper.file(seq)
        return seq

    def run(seq: Sequence_) -> None:
        found = seq.found(block_tokens).blocks
        keeper.take(Chunk(seq, len(seq.tokens) - found * block_tokens, found))
        blocks.allocate(seq, len(seq.tokens))
        seq.advance(len(seq.tokens) - seq.computed)
        keeper.computed(seq)

    def fresh() -> None:
        """Keys included."""
        at = next(turn)
        seq = request([at, *ids[1:]])
        run(seq)
        keeper.release(seq, Cause.ABORTED)
        blocks.scrub()

    same = request(ids)
    run(same)
    keeper.release(same, Cause.ABORTED)
    again = request(ids)
    again.found(block_tokens)

    def look_again() -> None:
        assert again.trail is not None
        again.trail._matched.clear()
        again.found(block_tokens)

    return [
        _timed("looking all of it up again, each block compared", look_again, rounds),
        _timed("the same when nothing ended since", lambda: again.found(block_tokens), rounds),
        _timed("keys, a look in vain, keeping all and evicting as much", fresh, rounds),
    ]


def _timed(what: str, work: Callable[[], object], rounds: int) -> Figure:
    work()
    taken = []
    for _ in range(rounds):
        begun = time.thread_time_ns()
        work()
        taken.append(time.thread_time_ns() - begun)
    return Figure(what, min(taken) / 1e6, statistics.median(taken) / 1e6)
