"""The content of a shard set: its facts (`info`), some rows (`head`), statistics (`stats`), an HTML page (`preview`).

Here: functions that read and describe, and change nothing. The commands of the same names in `smalti.cli` print their
results. Read `head` first, then `reading` (rows in ranges), `stats` with `distributions`, and `preview` with `charts`.
"""

from smalti.inspection.head import Head, head
from smalti.inspection.info import Info, info
from smalti.inspection.preview import Preview, preview
from smalti.inspection.stats import Stats, stats

__all__ = ["Head", "Info", "Preview", "Stats", "head", "info", "preview", "stats"]
