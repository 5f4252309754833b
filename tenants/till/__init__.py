"""Tills: parts of hot budgets set aside in Redis, drawn from before a hold, believed only by SQL."""

from tenants.till.contract import DrawAsk, Dry, Lives, Tills, Told
from tenants.till.memory import MemoryTills

__all__ = ["DrawAsk", "Dry", "Lives", "MemoryTills", "Tills", "Told"]
