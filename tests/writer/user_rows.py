"""A small set of rows of users: column `id` counts, `user` is the id modulo 7, `text` is "row <id>"."""

from dataclasses import replace

from smalti.catalog import Draft, load_manifest, new_write_id, publish
from smalti.catalog.manifest import row_hash_text
from smalti.catalog.verify import open_checked
from smalti.format import Schema, ShardBuilder, ShardOptions

COLUMNS = {"id": "int", "user": "int32", "text": "str"}


def write_rows(store, count=40, *, first=0, mode="create", size_limit=505, split=None, columns=COLUMNS, **options):
    """Publish rows `first` and following, some ten in a shard, hashed; return the manifest."""
    kinds = {name: options.pop(name) for name in ("compression", "hashes") if name in options}
    write_id = options.pop("write_id", None) or new_write_id()
    shard_options = ShardOptions(size_limit=size_limit, **({"hashes": ("xxh3_64",)} | kinds))
    schema = Schema.from_columns(columns)
    builder, filled = ShardBuilder(schema, shard_options), []
    for number in range(first, first + count):
        row = {"id": number, "user": number % 7, "text": f"row {number}"}
        filled += builder.add({name: row[name] for name in columns})
    infos, total = [], 0
    for each in [*filled, *builder.finish()]:
        total += each.row_hash()
        built = each.seal()
        infos.append(
            replace(built.info.with_prefix(f"{f'{split}/' if split else ''}{write_id}/00000"), partition=split)
        )
        store.put(infos[-1].stored.basename, bytes(built.payloads[0]))
    draft = Draft(write_id, schema, infos, row_hash=row_hash_text(total), **options)
    return publish(store, draft, mode=mode)


def ids_of(store, version=None):
    """Return the ids of a version's rows in order, read from the shards themselves."""
    found = []
    for shard in load_manifest(store, version=version).shards:
        with open_checked(store, shard) as opened:
            found += [int(opened[row]["id"]) for row in range(len(opened))]
    return found


def ids_without_user(user, *ranges):
    """Return the ids of the ranges that are not of this user."""
    return [number for numbers in ranges for number in numbers if number % 7 != user]
