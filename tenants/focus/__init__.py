"""The book as FOCUS rows: the open specification of cost and usage that finance tools read.

Refuses to know: who may export, where files go.  Source: MONEY.md §2 ("FOCUS"); FOCUS 1.2 and 1.4.
"""

from __future__ import annotations

from tenants.focus.columns import VERSIONS, columns_of
from tenants.focus.files import FORMATS, NoParquet
from tenants.focus.manifest import Export, Manifest

__all__ = ["FORMATS", "VERSIONS", "Export", "Manifest", "NoParquet", "columns_of"]
