"""Index files, `index.json`: reading them, merging those of many writers, and keeping them up to date with versions.

Parsing and emitting their bytes is in `smalti.format.index`. Read `refresh` first.
"""
