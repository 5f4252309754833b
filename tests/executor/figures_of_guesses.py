"""`python -m tests.executor.figures_of_guesses`: what guesses gain and cost on the real model, engine
alone.  Not a test: it measures.  Runs with and without take turns, since machines are shared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from statistics import median
from time import monotonic, monotonic_ns

from tokenizers import Tokenizer

from executor.contract import Abort, Emitted, Gauges, Sampling, Submit
from executor.engine import Engine
from executor.inbox import Gone
from executor.model_runner import load
from executor.settings import Settings
from tests.models import default_model_path

TEXT = (
    "The ferry leaves the harbour at seven in the morning, crosses the strait in forty minutes, and"
    " returns at noon with the post. On Sundays it waits for the second train. Tickets are sold on"
    " board, and dogs travel free of charge when they are on a lead. The captain, a woman of sixty who"
    " has crossed more than thirty thousand times, knows every rock between the two lighthouses and"
    " does not trust the charts. Her mate keeps the log in pencil, because ink freezes, and her dog"
    " sleeps on the mail. When fog comes in from the north, the ferry sounds its horn twice a minute"
    " and the island answers with a bell. Nobody has ever been late for school on account of the fog,"
    " although many have said so. The bakery sends bread on Tuesdays and Fridays, and the doctor comes"
    " on the first Monday of the month. In winter the crossing may be cancelled when the wind is"
    " stronger than eight; the company then pays for a bus."
)
REPEAT = "<|im_start|>user\nRepeat this text exactly:\n{}<|im_end|>\n<|im_start|>assistant\n"
NEW_TOKENS = 256
Jobs = Callable[[int], list[Submit]]


class Bench:
    """One engine, and its inbox."""

    def __init__(self, engine_of: Callable[[Bench], Engine]) -> None:
        self.box: list[tuple[int, Submit | Abort | Gone]] = []
        self.engine = engine_of(self)

    def take(self) -> list[tuple[int, Submit | Abort | Gone]]:
        taken, self.box = self.box, []
        return taken

    def rate(self, jobs: list[Submit]) -> float:
        """Output tokens a second."""
        self.box = [(0, job) for job in jobs]
        begin, count = monotonic(), 0
        while self.box or self.engine.busy:
            for report in self.engine.step().values():
                count += sum(len(u.tokens) for u in report.updates if isinstance(u, Emitted))
        return count / (monotonic() - begin)


def main() -> None:
    card, runner = load(default_model_path())
    words = Tokenizer.from_str(card.tokenizer_json.decode())
    repeat = tuple(words.encode(REPEAT.format(TEXT), add_special_tokens=False).ids)

    def bench(speculation: bool) -> Bench:
        settings = Settings(speculation=speculation)
        return Bench(lambda b: Engine(runner, b.take, clock_ns=monotonic_ns, settings=settings))

    def repeats(rows: int) -> Jobs:
        return lambda first: [
            Submit(
                request=first + row,
                prompt=repeat,
                max_new_tokens=NEW_TOKENS,
                sampling=Sampling(temperature=0.0),
            )
            for row in range(rows)
        ]

    def randoms(rows: int) -> Jobs:
        def jobs(first: int) -> list[Submit]:
            random = Random(first)
            return [
                Submit(
                    request=first + row,
                    prompt=tuple(random.randrange(100, card.vocab_size) for _ in range(128)),
                    max_new_tokens=NEW_TOKENS,
                    sampling=Sampling(temperature=1.0, seed=row),
                )
                for row in range(rows)
            ]

        return jobs

    for name, jobs in (
        ("repeat, greedy, 1 row", repeats(1)),
        ("repeat, greedy, 8 rows", repeats(8)),
        ("random, temperature 1, 1 row", randoms(1)),
        ("random, temperature 1, 8 rows", randoms(8)),
    ):
        benches = {on: bench(on) for on in (False, True)}
        rates: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(5):
            for on in (False, True) if turn % 2 else (True, False):
                rates[on].append(benches[on].rate(jobs(100 * turn + 1)))
        seen: Gauges = benches[True].engine.gauges
        sys.stdout.write(
            f"{name}: off {median(rates[False]):.0f}, on {median(rates[True]):.0f} tokens/s;"
            f" {seen.accepted_tokens} of {seen.drafted_tokens} guesses held,"
            f" {seen.steps} steps for {benches[False].engine.gauges.steps}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
