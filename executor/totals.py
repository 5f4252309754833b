"""What an engine has done since it began, and how that reads as `Gauges`.

Refuses to know: requests, steps still to come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from executor.block_manager import BlockManager
from executor.contract import GAPS_NS, STEP_TOKENS, DeviceTime, Gauges
from executor.cost import Rates
from executor.life import Life
from executor.tally import Tally


@dataclass(slots=True)
class Totals:
    steps: int = 0
    step_ns: int = 0
    busy_ns: int = 0
    recompute_ns: int = 0
    wrong_guesses_ns: int = 0
    failed_steps_ns: int = 0
    empty_steps_ns: int = 0
    now_ns: int = 0  # when the clock was last looked at
    life: Life | None = None
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    gaps: Tally = field(default_factory=lambda: Tally(GAPS_NS))
    step_tokens: Tally = field(default_factory=lambda: Tally(STEP_TOKENS))
    _stepped: int = 0  # tokens that belong to a step already

    def stepped(self) -> None:
        """A step is over.  What a slow mask let somebody say beside the steps belongs to the next."""
        tokens = self.prompt_tokens + self.generated_tokens
        self.step_tokens.add(tokens - self._stepped)
        self._stepped = tokens

    def guessed(self, drafted: int, missed: int) -> None:
        self.drafted_tokens += drafted
        self.accepted_tokens += drafted - missed

    def device(self, rates: Rates) -> DeviceTime | None:
        """Where the time went so far."""
        life = self.life
        if life is None:
            return None
        return DeviceTime(
            start=life.start,
            devices=life.devices,
            wall_ns=self.now_ns - life.began_ns,
            attributed_ns=self.busy_ns,
            load_ns=life.load_ns,
            capture_ns=life.capture_ns,
            warm_up_ns=life.warm_up_ns,
            recompute_ns=self.recompute_ns,
            wrong_guesses_ns=self.wrong_guesses_ns,
            failed_steps_ns=self.failed_steps_ns,
            empty_steps_ns=self.empty_steps_ns,
            coefficients=rates.coefficients,
        )

    def gauges(self, running: int, waiting: int, blocks: BlockManager, rates: Rates) -> Gauges:
        return Gauges(
            running=running,
            waiting=waiting,
            blocks_total=blocks.total,
            blocks_free=blocks.idle,
            steps=self.steps,
            step_ns=self.step_ns,
            busy_ns=self.busy_ns,
            overhead_ns=self.step_ns - self.busy_ns,
            preemptions=self.preemptions,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            gaps=self.gaps.spread(),
            step_tokens=self.step_tokens.spread(),
            device=self.device(rates),
        )
