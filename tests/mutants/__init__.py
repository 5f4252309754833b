"""The mutation gate: builds that are broken on purpose, and the test that must see each.

    python -m tests.mutants [NAME…] [--list]

A suite that is green says something only where it would have been red.  Each mutant takes one promise
away (`mutant`, catalogued by room: `keys`, `cache`, `texts`, `tokens`, `proofs`, `records`, `line`), in a copy of
this tree and never in it; the test that is named beside it must then fail, and pass where nothing is
broken.  Nothing that ships can be told to be broken (DESIGN.md, settled 16).
Source: SECURITY.md §6 (Mutation gate).
"""
