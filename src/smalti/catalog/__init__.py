"""Versions of a shard set: publish all at once, read any version, roll back, verify; merge index files.

Here: manifests, their objects below `_versions/`, the commit by put-if-absent, the index files for stock readers. Not
here: bytes of shards (`smalti.format`), local copies (`smalti.cache`), who reads what (`smalti.order`).
"""

from smalti.catalog.diff import VersionDiff, diff
from smalti.catalog.index.merge import merge_index
from smalti.catalog.manifest import Draft, Manifest, VersionInfo, new_write_id
from smalti.catalog.publishing.publish import publish, rollback
from smalti.catalog.reading import history, load_manifest
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
]
