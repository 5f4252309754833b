"""A request in the simulator: what was offered, and what a scheduler may see of it.

`Request` holds the whole truth, its output length included.  `SimWork` satisfies `protocol.Work` and
does not hold that length anywhere: whoever decides cannot know it, not even by mistake.  `computed`
tokens have keys and values, `known` exist, `high_water` is how far it ever got, as in
`executor.sequence`.  Blocks are numbers that nobody else has.

Refuses to know: machines, clocks, decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from executor.scheduler.protocol import NOTHING, Found, Turn
from executor.simulation.prefixes import Chain, Prefixes

NS: Final = 1_000_000_000
_BLOCKS_MAX: Final = 1 << 24  # of one request: its numbers never meet another's


@dataclass(frozen=True, slots=True)
class Request:
    """`max_new_tokens` is what its client allows; it says `output_tokens` and ends.  `cancel_ns`: so
    long after its arrival the client leaves.  `queue_ns`: not begun by then, it expires.  `returns`: so
    often its client comes again when it is told to, by the same `retry_key` if it has one.  `prefix`: what
    stands in the prompt, an id for each `prefix_id_tokens`, as far as others' of its tenant may share it."""

    at_ns: int
    tenant: str
    prompt_tokens: int
    output_tokens: int
    max_new_tokens: int = 1024
    weight: float = 1.0
    user: str = ""
    user_weight: float = 1.0
    workload: str = ""
    cancel_ns: int | None = None
    queue_ns: int | None = None
    returns: int = 0
    retry_key: bytes | None = None
    prefix: tuple[int, ...] = ()
    prefix_id_tokens: int = 512

    def __post_init__(self) -> None:
        if not 1 <= self.output_tokens <= self.max_new_tokens:
            raise ValueError(
                f"a request says {self.output_tokens} tokens; expected 1 to its {self.max_new_tokens}"
            )
        if self.prompt_tokens < 1 or self.at_ns < 0:
            raise ValueError("a request needs a prompt and a time of arrival from 0 on")


class SimWork:
    """Mutable, owned by an engine."""

    __slots__ = (
        "_chain",
        "_kept",
        "_numbered",
        "_prefixes",
        "blocks",
        "computed",
        "high_water",
        "known",
        "max_new_tokens",
        "preemptions",
        "prompt_tokens",
        "retry_key",
        "since_ns",
        "tenant",
        "tenant_weight",
        "ticket",
        "turn",
        "user",
        "user_weight",
        "workload",
    )

    def __init__(
        self, request: Request, ticket: int, now_ns: int, prefixes: Prefixes | None = None
    ) -> None:
        self.ticket = ticket
        self.turn: Turn | None = None
        self.workload = request.workload
        self.tenant = request.tenant
        self.tenant_weight = request.weight
        self.user = request.user
        self.user_weight = request.user_weight
        self.retry_key = request.retry_key
        self.since_ns = now_ns
        self.prompt_tokens = request.prompt_tokens
        self.max_new_tokens = request.max_new_tokens
        self.known = request.prompt_tokens
        self.computed = 0
        self.high_water = 0
        self.preemptions = 0
        self.blocks: list[int] | range = range(0)
        self._prefixes = prefixes
        self._chain: Chain = ()
        self._kept: list[int] = []  # of its chain, those that it holds and others may find
        self._numbered = ticket * _BLOCKS_MAX
        if prefixes is not None and request.prefix:
            self._chain = prefixes.chain(
                request.tenant,
                request.prefix,
                request.prefix_id_tokens,
                request.prompt_tokens - 1,  # the last is computed: what comes after it is wanted
            )

    @property
    def place(self) -> int:
        """In the order of first comings."""
        return self.ticket if self.turn is None else self.turn.ticket

    @property
    def pooled(self) -> int:
        """What is kept rests in the same memory."""
        return 0

    @property
    def todo(self) -> int:
        return self.known - self.computed

    @property
    def generated(self) -> int:
        return self.known - self.prompt_tokens

    def found(self, block_tokens: int) -> Found:
        return NOTHING if self._prefixes is None else self._prefixes.found(self._chain)

    def take(self, count: int, block_tokens: int) -> int:
        """Hold the first `count` blocks of its chain, with what was computed; how many had rested."""
        assert self._prefixes is not None
        assert not self.blocks
        self._kept = list(self._chain[:count])
        self.blocks = [-1 - block for block in self._kept]
        self.computed = count * block_tokens
        self.high_water = max(self.high_water, self.computed)
        return self._prefixes.take(self._kept)

    def keep(self, block_tokens: int) -> None:
        """What of its chain is computed by now can be found from now on."""
        if not self._chain:
            return
        assert self._prefixes is not None
        assert isinstance(self.blocks, list)
        for at in range(len(self._kept), min(self.computed // block_tokens, len(self._chain))):
            if not self._prefixes.keep(self._chain[at]):
                break  # another's is kept; its own from there on is nobody else's
            self._kept.append(self._chain[at])
            self.blocks[at] = -1 - self._chain[at]

    def hold(self, count: int) -> int:
        """Own `count` blocks at least; how many were taken for that."""
        more = count - len(self.blocks)
        if more <= 0:
            return 0
        assert count < _BLOCKS_MAX
        first = self._numbered
        if self._chain:
            self._numbered += more
            self.blocks = [*self.blocks, *range(first, first + more)]
        else:
            self.blocks = range(first, first + count)
        return more

    def release(self) -> int:
        """How many count as free from now on."""
        count = len(self.blocks) - len(self._kept)
        if self._prefixes is not None:
            count += self._prefixes.release(self._kept)
        self.blocks, self._kept = range(0), []
        return count

    def advance(self, count: int) -> None:
        """`count` more tokens are computed."""
        self.computed += count
        assert self.computed <= self.known
        self.high_water = max(self.high_water, self.computed)

    def rewind(self, now_ns: int) -> None:
        """Preempted: all is to be computed again, nothing that was said is lost."""
        assert not self.blocks
        self.computed = 0
        self.preemptions += 1
        self.since_ns = now_ns
