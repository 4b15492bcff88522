"""The life of a run: its worker and steps end together, and what it used and made is found again.

Read `lineage` first (what a run builds on), then `lifetime` and `worker` (how processes end).
"""
