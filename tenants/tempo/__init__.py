"""How fast: rates and concurrency at every scope of a request, all of them or none.

`memory` keeps them in this process, `redis` in one place for many, `either` goes by the one and, while it
does not answer, by the other.  Losing all of it is harmless: rates refill, leases lapse.
"""

from policies.rate import Window
from tenants.scopes import ScopeLimits
from tenants.tempo.contract import Headroom, Tempo, TempoAsk
from tenants.tempo.memory import MemoryTempo

__all__ = ["Headroom", "MemoryTempo", "ScopeLimits", "Tempo", "TempoAsk", "Window"]
