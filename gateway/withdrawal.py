"""Whether a running request still has its authority, and the end of those that have not.

Refuses to know: how authority is withdrawn.  Source: SECURITY.md P6, J20.
"""

from __future__ import annotations

from gateway.live import LiveRequest
from gateway.permission import Permission
from tenants.directory import Directory


def withdrawn(directory: Directory, permission: Permission, request: LiveRequest) -> bool:
    """Whether this request's authority is gone: its credential's, its tenant's, or that to a text."""
    who = request.who
    credential = who.credential
    is_key = credential.kind == "key"
    word = directory.is_revoked(
        key_id=credential.id if is_key else None,
        token_id=None if is_key else credential.id,
        issuer=who.issuer,
        subject=who.user,
        tenant=who.tenant,
        issued_at_s=credential.issued_at_s,
    )
    if word is not None:
        return True
    return request.reads is not None and not permission.to_go_on(who, request.reads)
