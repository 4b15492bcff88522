"""The content of a shard set: its facts (`info`), some rows (`head`), statistics (`stats`), an HTML page (`preview`).

Here: functions that read and describe, and change nothing. The commands of the same names in `smalti.cli` print their
results. Read `info` first, then `reading` (rows in ranges), `stats` with `distributions`, and `preview`.
"""

from smalti.inspection.info import Head, Info, head, info
from smalti.inspection.preview import Preview, preview
from smalti.inspection.stats import Stats, stats

__all__ = ["Head", "Info", "Preview", "Stats", "head", "info", "preview", "stats"]
