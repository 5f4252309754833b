"""All mutants, by room."""

from __future__ import annotations

from tests.mutants import cache, devices, finance, keys, line, once, records, texts, tokens

MUTANTS = (
    *keys.MUTANTS,
    *cache.MUTANTS,
    *texts.MUTANTS,
    *tokens.MUTANTS,
    *records.MUTANTS,
    *line.MUTANTS,
    *once.MUTANTS,
    *finance.MUTANTS,
    *devices.MUTANTS,
)
