"""Who may share what was computed, as pure code: labels and their lattice, and the chain over blocks.

Refuses to know: secrets (`security.cache_keys` derives the keys), text, blocks of memory, clocks.
Source: SECURITY.md §2; DESIGN.md, settled questions 2–5, 13.
"""
