"""The life of a run: its worker and steps end together, and what it used and made is found again.

Read `launcher` first (how Dagster finds a run whose process is gone), then `lifetime` and `worker` (how processes end).
"""
