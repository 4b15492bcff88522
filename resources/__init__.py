"""Thin Dagster resources: they hold configuration and hand out library objects; nothing heavy is here."""
