"""All families of cases, by name."""

from tests.hostile.archive_kinds import Archives
from tests.hostile.harness import Kind
from tests.hostile.index_kinds import Indexes
from tests.hostile.manifest_kinds import Manifests
from tests.hostile.packed_kinds import PackedFiles
from tests.hostile.picture_kinds import Pictures
from tests.hostile.seeds import MDS_INDEXES, MIXED_INDEXES, TEXT_INDEXES
from tests.hostile.shard_kinds import Shards
from tests.hostile.source_kinds import Sources
from tests.hostile.text_kinds import TextShards

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Indexes("mds-index", MDS_INDEXES),
        Indexes("text-index", TEXT_INDEXES + MIXED_INDEXES),
        Manifests(),
        Shards(),
        TextShards(),
        PackedFiles(),
        Archives(),
        Pictures(),
        Sources("parquet", "parquet"),
        Sources("litdata-rows", "litdata"),
        Sources("arrow-dataset", "huggingface"),
    )
}
