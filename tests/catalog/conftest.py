"""A small set of real shards in a store, and drafts of them."""

from collections.abc import Callable

import pytest

from smalti.catalog import Draft, new_write_id
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage import Store

COLUMNS = {"id": "int64", "text": "str"}


@pytest.fixture
def make_draft() -> Callable[..., Draft]:
    """Return a function that writes shards of `rows` samples, below a new write id, and returns their draft."""

    def make(
        store: Store,
        rows: int = 10,
        *,
        splits=(None,),
        first: int = 0,
        write_id: str | None = None,
        compression=None,
        columns=COLUMNS,
        **kw,
    ):
        from dataclasses import replace

        write_id = write_id or new_write_id()
        schema = Schema.from_columns(columns)
        infos = []
        for split in splits:
            builder = ShardBuilder(schema, ShardOptions(compression=compression, size_limit=400))
            built = []
            for row in range(first, first + rows):
                built += builder.add({"id": row, "text": f"row {row}"} | {k: "x" for k in columns if k not in COLUMNS})
            built += builder.finish()
            for shard in [filled.seal() for filled in built]:
                prefix = f"{split}/{write_id}/00000" if split else f"{write_id}/00000"
                info = replace(shard.info.with_prefix(prefix), partition=split)
                store.put(info.stored.basename, bytes(shard.payloads[0]))
                infos.append(info)
        return Draft(write_id, schema, infos, **kw)

    return make
