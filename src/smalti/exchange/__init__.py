"""Copies of versions between stores: one version, or all that a mirror lacks.

Here are the plan of a copy, the transfer of its objects, and the publication at the target. How a version becomes
visible is in `smalti.catalog`, how bytes are read and written in `smalti.storage`.
Read `copying` first; `target` has what makes a copy safe beside a vacuum.
"""

from smalti.exchange.copying import CopiedVersion, CopyReport, SkippedVersion, copy_version, sync
from smalti.exchange.transfer import CopyOptions

__all__ = ["CopiedVersion", "CopyOptions", "CopyReport", "SkippedVersion", "copy_version", "sync"]
