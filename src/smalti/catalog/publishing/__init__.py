"""Publishing a version: checking its shards, building its header, the commit itself.

Uploading shards is done before, by `smalti.writer` or `smalti.spark`; removing what nothing references, by
`smalti.catalog.retention`. Read `publish` first: it states the protocol.
"""
