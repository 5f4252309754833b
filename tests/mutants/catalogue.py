"""All mutants, by room."""

from __future__ import annotations

from tests.mutants import cache, devices, finance, keys, line, once, proofs, records, texts, tokens

MUTANTS = (
    *keys.MUTANTS,
    *cache.MUTANTS,
    *texts.MUTANTS,
    *tokens.MUTANTS,
    *proofs.MUTANTS,
    *records.MUTANTS,
    *line.MUTANTS,
    *once.MUTANTS,
    *finance.MUTANTS,
    *devices.MUTANTS,
)
