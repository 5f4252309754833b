"""The configuration: its shape, its rules, and the one way to load it.

`load` is production, `development` needs no file; both give `Settings`.
"""

from gateway.settings.development import development
from gateway.settings.faults import Fault, SettingsError
from gateway.settings.load import load, with_model, with_state_dir
from gateway.settings.shape import Mode, Settings

__all__ = [
    "Fault",
    "Mode",
    "Settings",
    "SettingsError",
    "development",
    "load",
    "with_model",
    "with_state_dir",
]
