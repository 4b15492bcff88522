"""Versions of a shard set: publish, open, compare, verify, roll back, tag and vacuum them; merge index files.

Here are manifests, the objects below `_versions/`, the commit by put-if-absent, and the index files for other readers.
The bytes of shards are in `smalti.format`, local copies in `smalti.cache`, the order of samples in `smalti.order`.
Read `manifest` first, then `publishing`, and `opening` for how a version is found.
"""

from smalti.catalog.diff import VersionDiff, diff
from smalti.catalog.manifest import Draft, Manifest, VersionInfo, new_write_id
from smalti.catalog.merge import merge_index
from smalti.catalog.opening import history, load_manifest
from smalti.catalog.publishing import publish, rollback, write_index
from smalti.catalog.retention.vacuum import VacuumReport, vacuum
from smalti.catalog.tags import tag, tags, untag
from smalti.catalog.verify import VerifyReport, verify

__all__ = [
    "Draft",
    "Manifest",
    "VacuumReport",
    "VerifyReport",
    "VersionDiff",
    "VersionInfo",
    "diff",
    "history",
    "load_manifest",
    "merge_index",
    "new_write_id",
    "publish",
    "rollback",
    "tag",
    "tags",
    "untag",
    "vacuum",
    "verify",
    "write_index",
]
