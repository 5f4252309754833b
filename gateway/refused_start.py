"""What a start is refused for with a sentence, and no traceback: each says what to mend."""

from __future__ import annotations

from gateway.development import DevelopmentState
from gateway.listen import BindError
from gateway.models_store import ModelMissing
from gateway.recording import AuditUnusable
from security.audit_files import AuditLocked
from security.audit_start import AuditCorrupt
from security.keyring import KeyringError
from security.webhook_signing import BadSecret
from tenants.asks import BookFault
from tenants.store import StoreRefused

REFUSED: tuple[type[Exception], ...] = (
    BindError,
    DevelopmentState,
    KeyringError,
    StoreRefused,
    BookFault,
    AuditLocked,
    AuditCorrupt,
    AuditUnusable,
    BadSecret,
    ModelMissing,
)
