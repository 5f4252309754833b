"""`lockgate audit timing`: does the time of an answer tell what somebody else has asked?

Runs the trials of `security.timing_audit_plan` against a running server and has `security.timing_audit`
judge.  Decides nothing itself.  What cannot be measured here stays in the design, so that the verdict says
so.  Source: SECURITY.md §3.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from gateway.cli import audit_asking, audit_report
from gateway.cli.audit import RootKey
from gateway.cli.audit_asking import Answer, Line, span, told
from gateway.cli.audit_registry import Registry
from gateway.cli.options import VAR, Json, StateDir
from gateway.cli.show import Refusal, clean, note, table
from security import timing_audit_stats as stats
from security.audit_report import timing_report
from security.isolation_audit import Need
from security.timing_audit import (
    PREFIX_TOKENS_MIN,
    RELEASE_PAIRS,
    CellName,
    Design,
    Level,
    Outcome,
    Pair,
    Verdict,
    judge,
)
from security.timing_audit_plan import Act, Role, Trial, letters, requests_of, trials

PROBES: Final = 3
PAIRS_MAX: Final = 100_000
_LEVELS: Final = tuple(level for level in Level if level is not Level.FRESH)

Ask = Callable[[Role, str, bool], Answer]
"""As whom, what, and whether after the audit's document."""


def timing(
    pairs: Annotated[
        int,
        typer.Option(
            min=1, max=PAIRS_MAX, help=f"Pairs of each cell; {RELEASE_PAIRS} before a release."
        ),
    ] = 250,
    levels: Annotated[
        str, typer.Option(help="Which levels; same-user is the positive control.")
    ] = ",".join(_LEVELS),
    victims: Annotated[
        str, typer.Option("--victim-requests", help="How often the victim sends its prefix before.")
    ] = "1,5,25",
    prefix_tokens: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Length of the secret prefix.")
    ] = PREFIX_TOKENS_MIN,
    stop_after: Annotated[
        int | None,
        typer.Option(min=1, help="End after so many trials: INCONCLUSIVE, never a pass."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Draws texts and order [a new one]. The same seed twice within the cache's lifetime "
            "finds its own controls warm."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="The model's name or alias.")] = "default",
    tokens: audit_asking.TokensFile = None,
    attacker: audit_asking.Attacker = "acme/alice",
    colleague: audit_asking.Colleague = "acme/bob",
    stranger: audit_asking.Stranger = "globex/carol",
    i_operate_this: audit_asking.Operated = False,
    out: audit_report.Out = None,
    root_key: RootKey = None,
    state_dir: StateDir = VAR,
    as_json: Json = False,
) -> None:
    """Measure whether the time to the first token tells what others have sent before.

    The duration is said first. Exit code: 0 PASS, 1 FAIL, 3 INCONCLUSIVE. Ctrl-C ends it with a report of
    what was measured.
    """
    design = Design(
        pairs=pairs,
        levels=levels_of(levels),
        victims=victims_of(victims),
        prefix_tokens=prefix_tokens,
        seed=secrets.randbits(63) if seed is None else seed,
    )
    names = {Role.ATTACKER: attacker, Role.COLLEAGUE: colleague, Role.STRANGER: stranger}
    where = audit_asking.target(tokens, state_dir, names, operated=i_operate_this)
    with ExitStack() as stack:
        lines = {
            role: stack.enter_context(Line(where.server(name), model))
            for role, name in names.items()
        }
        registry = stack.enter_context(
            Registry(where.server(colleague), None, where.server(attacker))
        )
        if Level.AFTER_REVOKE in design.levels:
            registry.prepare(design.seed, frozenset({Need.DOCUMENTS}), each=1)
        able = not registry.lacks
        probes = [_probe(line, design, at) for at, line in enumerate([*lines.values()] * PROBES)]
        _foretell(design, probes, stop_after, registry.lacks)
        samples, stopped = conduct(
            design,
            (trial for trial in trials(design) if able or not trial.uses_document),
            lambda role, text, after: lines[role].ask(
                text, registry.fields(text, 0 if after else None, None)
            ),
            lambda: registry.renew(0),
            stop_after=stop_after,
        )
    verdict = judge(design, samples, stopped=stopped)
    if not as_json:
        _show(verdict)
    about = audit_report.about(where.url, model, design.seed, time.time())
    report = timing_report(design, samples, verdict, {**about, "stopped": stopped})
    audit_report.finish(report, out, root_key, state_dir, as_json=as_json)


def conduct(
    design: Design,
    plan: Iterable[Trial],
    ask: Ask,
    withdraw: Callable[[], None],
    *,
    stop_after: int | None = None,
    clock_s: Callable[[], float] = time.monotonic,
) -> tuple[dict[CellName, list[Pair]], str | None]:
    """All pairs, and why the run is not whole, if it is not.  Raises Refusal where not one trial was done."""
    samples: dict[CellName, list[Pair]] = {}
    todo = list(plan)
    done, begun_s = 0, clock_s()
    try:
        for trial in todo:
            if done == stop_after:
                return samples, f"stopped after {done:,} of {len(todo):,} trials, as asked"
            samples.setdefault(trial.cell, []).append(_pair(trial, design, ask, withdraw))
            done += 1
            told(done, len(todo), begun_s, clock_s())
    except Refusal as refusal:
        if not done:
            raise
        return samples, f"ended after {done:,} of {len(todo):,} trials: {clean(refusal.message)}"
    except KeyboardInterrupt:
        return samples, f"interrupted after {done:,} of {len(todo):,} trials"
    return samples, None


def _pair(trial: Trial, design: Design, ask: Ask, withdraw: Callable[[], None]) -> Pair:
    found: dict[Act, Answer] = {}
    for step in trial.steps():
        if step.role is None:
            withdraw()
            continue
        found[step.act] = ask(step.role, trial.text(step.act, design), trial.uses_document)
    secret, control = found[Act.SECRET], found[Act.CONTROL]
    return Pair(secret.ttft_ns, control.ttft_ns, secret.cached_tokens, control.cached_tokens)


def _probe(line: Line, design: Design, at: int) -> tuple[Answer, float]:
    """A prompt as the trials send it, new each time: how it is answered, and in how many seconds."""
    begun_s = time.monotonic()
    answer = line.ask(letters(f"{design.seed}/probe/{at}", design.prefix_tokens))
    if answer.prompt_tokens < design.prefix_tokens:
        raise Refusal(
            f"The server counts {answer.prompt_tokens:,} tokens where the audit sent "
            f"{design.prefix_tokens:,} letters. Give a larger --prefix-tokens."
        )
    return answer, time.monotonic() - begun_s


def _foretell(
    design: Design,
    probes: Sequence[tuple[Answer, float]],
    stop_after: int | None,
    lacks: Mapping[Need, str],
) -> None:
    answer, whole = probes[0][0], design
    if lacks:
        levels = tuple(level for level in design.levels if level is not Level.AFTER_REVOKE)
        whole = replace(design, levels=levels)
    part = 1.0 if stop_after is None else min(1.0, stop_after / (design.pairs * len(whole.cells)))
    requests = max(1, round(requests_of(whole) * part))
    expected_s = duration_s(requests, stats.median([took_s for _, took_s in probes]), answer)
    note(
        f"{requests:,} requests of {answer.prompt_tokens:,} tokens: about {span(expected_s)}, less where "
        "the cache answers. The machine should do nothing else meanwhile."
    )
    for why in lacks.values():
        note(f"note: after-revoke cannot be measured: {why}.")


def duration_s(requests: int, each_s: float, answer: Answer) -> float:
    """What takes longest: computing one after another, or the caller's rates, of which the attacker uses
    most."""
    slowest = requests * each_s
    if answer.requests_per_minute:
        slowest = max(slowest, 60 * requests / answer.requests_per_minute)
    if answer.tokens_per_minute:
        slowest = max(slowest, 60 * requests * answer.prompt_tokens / answer.tokens_per_minute)
    return slowest


def levels_of(text: str) -> tuple[Level, ...]:
    words = [word.strip() for word in text.split(",")]
    allowed = {level.value: level for level in _LEVELS}
    for word in words:
        if word not in allowed:
            raise Refusal(
                f"--levels: {clean(word)!r} is none. There are {', '.join(allowed)}.", exit_code=2
            )
    return tuple(dict.fromkeys(allowed[word] for word in words))


def victims_of(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 1 <= int(word[:6]) <= 1000 for word in words):
        raise Refusal("--victim-requests: expected numbers of 1 to 1000, as 1,5,25.", exit_code=2)
    return tuple(dict.fromkeys(int(word) for word in words))


def _show(verdict: Verdict) -> None:
    table([_row(each) for each in verdict.findings])
    if verdict.gap_ns is not None and verdict.outcome is not Outcome.FAIL:
        note(f"a hit saves {verdict.gap_ns / 1e6:.2f} ms")


def _row(finding: Any) -> Mapping[str, Any]:
    return {
        "cell": str(finding.cell),
        "pairs": finding.pairs,
        "median_ms": finding.median_ns / 1e6,
        "from_ms": finding.low_ns / 1e6,
        "to_ms": finding.high_ns / 1e6,
        "wilcoxon_p": f"{finding.wilcoxon_p:.1e}",
        "sign_p": f"{finding.sign_p:.1e}",
        "holm_p": None if finding.adjusted_p is None else f"{finding.adjusted_p:.1e}",
        "ks_p": f"{finding.ks_p:.1e}",
        "auc": finding.auc,
        "told_cached": finding.reported,
    }
