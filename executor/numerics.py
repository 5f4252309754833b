"""What a served model promises of its arithmetic; executor/cpu/README.md says what each costs.

`fast`: layouts may follow the number of rows in a step.  `invariant`: a request's logits do not depend on
what runs beside it.  `int8`: as `fast`, and what matrix products multiply is rounded to 8 bits.
"""

from __future__ import annotations

from enum import StrEnum


class Numerics(StrEnum):
    FAST = "fast"
    INVARIANT = "invariant"
    INT8 = "int8"
