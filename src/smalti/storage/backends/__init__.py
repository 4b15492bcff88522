"""Makers of file systems: one module per client library, each with a function `make(options)`.

A module may also parse the addresses of its scheme. Not here: which module belongs to which scheme, and what else is
known about it (`smalti.storage.schemes`), retries and deadlines (`smalti.storage.object_store`), Databricks
(`smalti.storage.databricks`). Read `memory` first, the shortest, then `s3`.
"""
