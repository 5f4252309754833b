"""Classes of work and batching: what a file may ask of the scheduler, and what contradicts itself.

Pure; called by `rules`.  Source: SCHEDULER.md §2 (Classes): the parts that are kept free come to at most
0.7, so that everybody else can run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.settings.faults import Fault
from gateway.settings.shape import BATCH_WAIT_MS, Batching, File, Model, ServiceClass

RESERVED_MAX: Final = 0.7


def batching(model: Model, path: str) -> Iterator[Fault]:
    """A size or a wait that changes nothing is a misunderstanding."""
    kind = model.batching
    if model.batch_size is not None and kind is Batching.CONTINUOUS:
        yield Fault(
            f"{path}.batch_size",
            "is of no use to continuous batching, which lets each request join when there is room",
            'batching = "dynamic" or "static" beside it',
            "Remove it, or choose one of those.",
        )
    if model.batch_wait_ms is not None and kind is not Batching.DYNAMIC:
        yield Fault(
            f"{path}.batch_wait_ms",
            f"is of no use to {kind.value} batching, which waits for no company",
            'batching = "dynamic" beside it',
            "Remove it, or choose dynamic batching.",
        )


def service_class(item: ServiceClass, path: str) -> Iterator[Fault]:
    targets = item.ttft_ms is not None or item.itl_ms is not None
    if item.weight is None and not (item.reserved or item.floor or targets):
        yield Fault(
            path,
            "bounds nothing: it has no share and promises nothing",
            "a weight, a reserved part, a floor, ttft_ms or itl_ms",
            "Write weight = 1.0 for a class that takes its turn like any other.",
        )
    if item.reserved and item.floor:
        yield Fault(
            f"{path}.floor",
            "stands beside a reserved part, which is a floor already",
            "one of the two",
            "Remove the floor.",
        )
    backfill = item.floor and item.weight is None and not item.reserved
    if backfill and item.ttft_ms is not None:
        yield Fault(
            f"{path}.ttft_ms",
            "promises a first token in a class that takes what others leave",
            "a weight or a reserved part, by which it can be kept",
            "Give the class a weight beside its floor, or remove ttft_ms.",
        )


def shares(file: File) -> Iterator[Fault]:
    reserved = round(sum(item.reserved for item in file.classes.values()), 9)
    floors = round(sum(item.floor for item in file.classes.values()), 9)
    if reserved > RESERVED_MAX:
        yield Fault(
            "classes",
            f"reserve {reserved:g} together",
            f"at most {RESERVED_MAX:g}, so that the other classes can run",
            "Lower a reserved share.",
        )
    if reserved + floors > 1:
        yield Fault(
            "classes",
            f"reserved shares and floors come to {reserved + floors:g}",
            "at most 1",
            "Lower one of them.",
        )


def waits(file: File) -> Iterator[Fault]:
    """A batch that may be held back for longer than a class is promised breaks the promise by design."""
    for index, model in enumerate(file.models):
        if model.batching is not Batching.DYNAMIC:
            continue
        wait_ms = model.batch_wait_ms or BATCH_WAIT_MS
        for name, item in file.classes.items():
            if item.ttft_ms is not None and item.ttft_ms <= wait_ms:
                yield Fault(
                    f"models[{index}].batch_wait_ms",
                    f"holds a request back for {wait_ms:,} ms, and classes.{name} promises its first "
                    f"token within {item.ttft_ms:,} ms",
                    "less than the shortest ttft_ms",
                    "Lower it.",
                )
