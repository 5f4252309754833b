"""Times of requests as machines give them: noise of σ a request, a drift shared by the two of a pair, and
now and then a stall.  Source: SECURITY.md §3.6."""

from __future__ import annotations

import random
from dataclasses import dataclass

from security.timing_audit import Pair

DRIFT_KEPT = 0.9
SPIKES = 0.05


@dataclass(frozen=True)
class Machine:
    base_ms: float = 100.0
    sigma_ms: float = 1.0
    spike_sigmas: float = 5.0

    def pairs(self, count: int, saved_ms: float, *, seed: int) -> list[Pair]:
        """`saved_ms`: by how much the secret is faster."""
        rng = random.Random(seed)
        drift, found = rng.gauss(0.0, 1.0), []
        for _ in range(count):
            drift = DRIFT_KEPT * drift + (1 - DRIFT_KEPT**2) ** 0.5 * rng.gauss(0.0, 1.0)
            secret, control = (
                self.base_ms + self.sigma_ms * (drift + rng.gauss(0.0, 1.0) + self._spike(rng))
                for _ in range(2)
            )
            found.append(Pair(int((secret - saved_ms) * 1e6), int(control * 1e6)))
        return found

    def _spike(self, rng: random.Random) -> float:
        return rng.expovariate(1 / self.spike_sigmas) if rng.random() < SPIKES else 0.0


MACHINE = Machine()
