"""Small shards on disk, for tests of reading."""

from smalti.format import Schema, Shard, ShardBuilder, ShardInfo, ShardOptions


def build(columns, samples, **options):
    """Return the shards of `samples`."""
    builder = ShardBuilder(Schema.from_columns(columns), ShardOptions(**options))
    built = [shard for sample in samples for shard in builder.add(sample)]
    return [filled.seal() for filled in built + builder.finish()]


def write(folder, columns, samples, **options) -> tuple[ShardInfo, Shard]:
    """Write one uncompressed shard, and return its entry and the open shard."""
    (shard,) = build(columns, samples, **options)
    path = folder / shard.info.raw.basename
    path.write_bytes(shard.payloads[0])
    return shard.info, Shard.open(path, shard.info)
