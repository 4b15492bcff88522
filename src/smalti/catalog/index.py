"""Index files: `index.json` at the root and in the folder of each split, for readers that know no versions.

They are copies; the headers below `_versions/` decide. A publisher that dies before or between them leaves the old
ones, whose shards still exist; the next publisher brings them up to date. Index files of very many shards are written
entry by entry through a temporary file.

Intended behaviour of replacing one, on a store with conditional puts; anything else is a bug:
1. The present file is read first. If it shows a newer version, the new file is obsolete, which is no error.
2. The new file is put only if the file that was read is still there (`put_if_match`), or there is still none
   (`put_if_absent`). Otherwise: again from 1.
3. So a publisher that is suspended between reading and putting, or whose put arrives late, never replaces a newer one.

On other stores the file is replaced unconditionally, and the publisher then looks for newer versions.

Smalti's facts are below a key of its own, `smalti`, which other readers ignore. They contain the places of the shards'
block lists (`smalti.format.hashing`), because other readers refuse unknown fields in a shard's entry. The digest does
not cover these; it covers the hashes of the whole files. Hashes that a writer keeps out of the entries
(`ShardOptions.unlisted_hashes`) are there too, and of a small set a sum of all entries with the names of files, which
shows that no other program has changed them.

The index file of a version with more than `MAX_LISTED_SHARDS` shards has Smalti's facts and no shards: to list a
million takes a minute and 600 MB with every version, whatever it adds. The same holds if the entries would take more
than `MAX_INDEX_BYTES`, because each names all columns. In place of the format's version it has a text,
which other readers refuse with that text in their message: it names the command that lists the shards (`write_index`).
The next version replaces such a list, so that no reader takes it for the newest.

Large index files of other writers are read as columns by Arrow's JSON reader (`read_regular`). The entries in files of
MosaicML's writer differ in names, sizes, hashes and counts only. Parsed to Python objects, 10^5 of them take seconds. A
file with other entries, or an invalid one, is left to `parse_index`, which explains the fault.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from smalti.catalog.commit import ATTEMPTS, put_and_check
from smalti.catalog.digest import NAMES_HEAD, canonical, digest_of
from smalti.catalog.manifest import (
    FOLDER,
    INDEX,
    Header,
    Manifest,
    header_key,
    parse_header,
    parse_json,
    read_header,
    read_manifest,
)
from smalti.catalog.sidecars import columns_of
from smalti.catalog.table.arrow import file_of
from smalti.catalog.table.content import own_content
from smalti.catalog.table.shard_table import ShardTable, samples_of, samples_of_split
from smalti.errors import (
    CatalogError,
    IndexFileError,
    SmaltiError,
    StoreConflict,
    StoreError,
    StoreExists,
    StoreNotFound,
)
from smalti.format import MAX_INDEX_BYTES, BlockList, ShardInfo, check_basename, emit_index, parse_index
from smalti.format.index import FILE_KINDS, MAX_STORED_BYTES, index_parts
from smalti.storage import Store
from smalti.storage.store import delete_own, put_own

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
EXTRA = "smalti"
"""Smalti's own top-level key in an index file; other readers ignore it."""
PEEK_BYTES = 1 << 20
"""An index file up to this size is read and parsed as a whole."""
_KEY = b'"smalti": '
_END = re.compile(r', "version": 2}\s*\Z')
BLOCK_LISTS = "block_lists"
"""The name below Smalti's key of the files with block hashes, and of the place of each shard's list in them."""
UNLISTED_HASHES = "unlisted_hashes"
"""The name below Smalti's key of hashes that a writer keeps out of the shards and their entries."""
LISTED = "listed"
"""The name below Smalti's key of the sum over the entries of a small set, with unlisted hashes (`digest_of`)."""
INDEX_FORMAT = 1
MAX_ROUNDS = 100
"""Rounds of writing index files while other publishers keep overtaking; after that the last of them does it."""
MAX_REPLACE_ATTEMPTS = 100
"""Attempts to replace one file while other publishers keep replacing it; after that the last of them does it."""
MAX_REPLACED_BYTES = 64 << 20
"""A larger file is not read in order to replace it: a publisher must not need that much memory."""
MANY_SHARDS = 4096
"""From this number of shards on, an index file is written entry by entry: a million entries are 700 MB."""
MAX_LISTED_SHARDS = 1 << 15
"""Number of shards up to which every publisher lists them: 20 MB and about a second; 2 TB in shards of 64 MB."""
_HEAD, _TAIL = b'{"shards": [', b'], "version": 2}'
_BETWEEN = b"}, {"  # around and between the entries


@dataclass(frozen=True)
class IndexSummary:
    """The parts of an index file that are needed to find versions, and its content if it was read anyway."""

    extra: dict[str, Any] | None
    """The value of Smalti's key; None when another program wrote the file."""
    top: dict[str, Any] | None = None
    """The whole file, parsed, when it was small enough to be read at once."""
    regular: tuple[ShardTable, str] | None = None
    """The shards of a large file whose entries are all alike, and their digest."""
    is_empty: bool = False
    """True if the file is empty, because the store lost a write that it acknowledged; `_versions/` is authoritative."""
    version: int = 0
    """The version that it shows; 0 for none."""


def peek_index(store: Store) -> IndexSummary | None:
    """Read the summary of the index file at this place; None when there is no such file.

    Raises:
        StoreNotFound: the bucket does not exist.
        IndexFileError: it is not JSON, Smalti's key is not an object, or it names a version that cannot be.
    """
    try:
        head = store.get_range(INDEX, 0, PEEK_BYTES)
        if not head:
            return IndexSummary(None, is_empty=True)
        if len(head) < PEEK_BYTES:
            return _parse_whole(head, store)
        size = store.size(INDEX)
        extra = _from_tail(store.get_range(INDEX, size - PEEK_BYTES, size))
        if extra is not None:  # a million shards of Smalti's own are 700 MB, which need not be parsed
            return IndexSummary(extra, version=_version_of(extra, store))
        check_index_size(size, store.locate(INDEX))
        data = store.get_limited(INDEX, size)
    except StoreNotFound as error:
        if error.facts.get("is_bucket"):
            raise
        return None
    regular = read_regular(data, where=store.locate(INDEX))
    return _parse_whole(data, store) if regular is None else IndexSummary(None, regular=regular)


def check_index_size(num_bytes: int, where: str) -> int:
    """Return the size of an index file if the file may be read into memory.

    Raises:
        IndexFileError: it is larger than any index file that is parsed.
    """
    if num_bytes > MAX_INDEX_BYTES:
        raise IndexFileError(f"{where}: {num_bytes} bytes are more than the {MAX_INDEX_BYTES} allowed.", where=where)
    return num_bytes


def _from_tail(tail: bytes) -> dict[str, Any] | None:
    """Return the value of Smalti's key if it is the last top-level key but one, as `emit_index` writes it; else None.

    Only the version may follow it up to the end of the file, so that it cannot be the key of a nested object.
    """
    place = tail.rfind(_KEY)
    if place < 0:
        return None
    try:
        text = tail[place + len(_KEY) :].decode("ascii")
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _END.match(text, end) else None


def _parse_whole(data: bytes, store: Store) -> IndexSummary:
    top = parse_json(data, where=store.locate(INDEX))
    extra = top.get(EXTRA)
    if extra is not None and not isinstance(extra, dict):
        raise IndexFileError(f"{store.locate(INDEX)}: key {EXTRA!r} holds {extra!r:.60}, expected an object", key=INDEX)
    return IndexSummary(extra, top, version=0 if extra is None else _version_of(extra, store))


def _version_of(extra: dict[str, Any], store: Store) -> int:
    """Return the version that an index file names; 0 for none."""
    if "version" not in extra:
        return 0
    version = extra["version"]
    if type(version) is not int or version < 1:
        raise IndexFileError(
            f"{store.locate(INDEX)}: {EXTRA}.version is {version!r:.60}, expected a number from 1 on", key=INDEX
        )
    return version


def encode_block_lists(shards: Sequence[ShardInfo], folder: str = "") -> dict[str, Any]:
    """Return what is added below Smalti's key: nothing where no shard has a block list.

    `folder` is cut off from the names of the files; each shard has the place of its file in `files`, then offset, size
    of a block, and digest.
    """
    files = {each.blocks.file: None for each in shards if each.blocks is not None}
    if not files:
        return {}
    places = {file: number for number, file in enumerate(files)}
    lists = [
        None
        if (each := shard.blocks) is None
        else [places[each.file], each.offset, each.block_bytes, f"{each.digest:016x}"]
        for shard in shards
    ]
    return {BLOCK_LISTS: {"files": [file.removeprefix(folder) for file in files], "shards": lists}}


def decode_block_lists(shards: Sequence[ShardInfo], extra: dict[str, Any]) -> tuple[ShardInfo, ...]:
    """Return the shards with the block lists below Smalti's key; missing or malformed lists are ignored."""
    try:
        files, lists = extra[BLOCK_LISTS]["files"], extra[BLOCK_LISTS]["shards"]
        found = []
        for shard, encoded in zip(shards, lists, strict=True):
            if encoded is None or shard.zip is not None:
                found.append(shard)
                continue
            number, offset, block_bytes, digest = encoded
            name = check_basename(files[number], where=BLOCK_LISTS)
            blocks = BlockList(name, int(offset), int(block_bytes), int(digest, 16))
            blocks.check(BLOCK_LISTS)
            found.append(replace(shard, blocks=blocks))
        return tuple(found)
    except (KeyError, IndexError, TypeError, ValueError, IndexFileError):
        return tuple(shards)


def encode_unlisted_hashes(shards: Sequence[ShardInfo]) -> dict[str, list[dict[str, dict[str, str]]]]:
    """Return what is added below Smalti's key for hashes that the entries of shards omit; nothing where none has any.

    Each shard has an object from the kind of a file (`raw`, `zip`, `meta`, `zip_meta`) to its hashes by name.
    """
    found: list[dict[str, dict[str, str]]] = []
    for shard in shards:
        names = shard.unlisted_hashes
        files = {kind: getattr(shard, kind) for kind in FILE_KINDS if names}
        found.append(
            {kind: {name: file.hashes[name] for name in names} for kind, file in files.items() if file is not None}
        )
    return {UNLISTED_HASHES: found} if any(found) else {}


def decode_unlisted_hashes(shards: Sequence[ShardInfo], extra: dict[str, Any]) -> tuple[ShardInfo, ...]:
    """Return the shards with the hashes below Smalti's key; the caller compares the digest of the result.

    Raises:
        IndexFileError: the hashes are malformed.
    """
    encoded = extra.get(UNLISTED_HASHES)
    if encoded is None:
        return tuple(shards)
    where = f"{INDEX}: $.{EXTRA}.{UNLISTED_HASHES}"
    if not isinstance(encoded, list) or len(encoded) != len(shards):
        raise IndexFileError(f"{where}: expected a list with an entry for each of {len(shards)} shards", key=INDEX)
    return tuple(_with_unlisted(shard, each, where) for shard, each in zip(shards, encoded, strict=True))


def _with_unlisted(shard: ShardInfo, encoded: object, where: str) -> ShardInfo:
    changes: dict[str, Any] = {}
    for kind in FILE_KINDS:
        file, hashes = getattr(shard, kind), encoded.get(kind) if isinstance(encoded, dict) else None
        if file is None or hashes is None:
            continue
        if not isinstance(hashes, dict):
            raise IndexFileError(f"{where}: expected hashes by name for {kind}, found {hashes!r:.60}", key=INDEX)
        changes[kind] = replace(file, hashes={**hashes, **file.hashes})
        changes[kind].check(where, limit=MAX_STORED_BYTES)
    return replace(shard, **changes) if changes else shard


def refresh_index(store: Store, manifest: Manifest, *, lists_all: bool = False) -> None:
    """Make the index files show the newest version: `manifest`, or one that was published after it.

    With `lists_all`, they list the shards also if there are more than `MAX_LISTED_SHARDS`.

    On stores with conditional puts, a slow publisher never replaces a newer index file. On others it may, so the
    publisher that writes last looks for newer versions afterwards.
    """
    written: set[str] = set()  # splits written here; a newer version without them does not know of their index files
    for _ in range(MAX_ROUNDS):
        shown: Mapping[str, Any] = {}
        with suppress(IndexFileError):  # a damaged file shows nothing, and is replaced
            found = peek_index(store)
            shown = (found.extra or {}) if found is not None else {}
        lists_shards = lists_all or _fits_index(manifest.shards)
        # Without shards, the file that shows this version stays: it may list them at the request of a user.
        is_done = not lists_shards and shown.get("digest") == manifest.digest
        if shown.get("version", 0) < manifest.version + (not is_done):
            stale = {*shown.get("partitions", ()), *written} - set(manifest.partitions)
            _write(store, manifest, stale, lists_shards=lists_shards)
            written |= set(manifest.partitions)
        newer: Header | None = None
        with suppress(StoreNotFound):
            while True:
                newer = read_header(store, (newer or manifest).version + 1)
        if newer is None:
            return
        manifest = read_manifest(store, newer)


def _fits_index(shards: Sequence[ShardInfo]) -> bool:
    """Return whether a publisher lists these shards: few enough, and not too large for readers by their columns."""
    if not shards or len(shards) > MAX_LISTED_SHARDS:
        return not shards
    return len(shards) * len(json.dumps(shards[0].to_json())) <= MAX_INDEX_BYTES


def _write(store: Store, manifest: Manifest, stale: set[str], *, lists_shards: bool) -> None:
    """Write the index files of a version, and remove those of `stale` splits."""
    extra = _facts(manifest, manifest.schema.columns())
    for split in manifest.partitions:
        key = f"{split}/{INDEX}"
        if lists_shards:
            below = manifest.select(split)
            own = extra | {"split": split, "rows": samples_of(below)} | _hashes(below, f"{split}/")
            put_index(store, key, below, {EXTRA: own}, f"{split}/")
        else:
            own = extra | {"split": split, "rows": samples_of_split(manifest.shards, split)}
            replace_index(store, key, unlisted_index(manifest, own), manifest.version)
    for split in sorted(stale):
        key = f"{split}/{INDEX}"
        with suppress(StoreNotFound):
            # unless a newer version or no version has it
            if 0 < version_of_index(store.get_limited(key, MAX_INDEX_BYTES)) <= manifest.version:
                delete_own(store, key)
    if lists_shards:
        put_index(store, INDEX, manifest.shards, {EXTRA: extra | _hashes(manifest.shards)})
    else:
        replace_index(store, INDEX, unlisted_index(manifest, extra), manifest.version)


def _facts(version: Manifest | Header, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of a version below Smalti's key.

    They are fixed by the format of the index file: new fields of a version are in its header alone.
    """
    facts: dict[str, Any] = {
        "format": INDEX_FORMAT,
        "version": version.version,
        "parent": version.parent,
        "write_id": version.write_id,
        "digest": version.digest,
        "rows": version.rows,
        "created": version.created,
        "columns": columns,
        "partitions": list(version.partitions),
        "lineage": dict(version.lineage),
    }
    return facts | ({"logical": dict(version.logical)} if version.logical else {})


def check_readable(header: Header, *, where: str) -> None:
    """Check that a reader accepts the header, and the facts of it that index files repeat.

    Publishers call it before the commit: a version that cannot be read would hide those before it.

    Raises:
        CatalogError: a reader would refuse them.
    """
    try:
        data = header.emit()
        if parse_header(data, where=header_key(header.version)).emit() != data:
            raise IndexFileError("the header that is read differs from the one that is written")
        columns_of(header.sidecars)
        facts = json.dumps({EXTRA: _facts(header, header.columns)}, allow_nan=False)
        parse_json(facts.encode("ascii"), where=INDEX)
    except (IndexFileError, ValueError, TypeError, RecursionError) as error:
        raise CatalogError(
            f"{where}: version {header.version} could not be read back, so it was not published: {error}. Look at its "
            "lineage, metadata, types and columns, and write again",
            version=header.version,
        ) from error


def unlisted_index(manifest: Manifest, extra: Mapping[str, Any]) -> bytes:
    """Return an index file without shards, which other readers refuse with a message that names the way out."""
    text = (
        f"none: the {len(manifest.shards)} shards of version {manifest.version} are listed below {FOLDER}/ alone, for "
        "Smalti; `smalti write-index URL` lists them here for other readers, until the next version"
    )
    return json.dumps({"shards": [], EXTRA: extra, "version": text}, sort_keys=True, allow_nan=False).encode("ascii")


def _hashes(shards: Sequence[ShardInfo], folder: str = "") -> dict[str, Any]:
    """Return the hashes below Smalti's key of a small set; larger sets are opened by their shard table."""
    if len(shards) >= MANY_SHARDS:
        return {}
    beside = encode_block_lists(shards, folder) | encode_unlisted_hashes(shards)
    return beside if folder else beside | {LISTED: digest_of(shards)}


def put_index(store: Store, key: str, shards: Sequence[ShardInfo], extra: Mapping[str, Any], folder: str = "") -> None:
    """Replace an index file unless one of a newer version is there; check that the store has a file afterwards.

    An index file of very many shards, which takes a while to write, is put unconditionally; a newer one is looked for
    before that. `extra` has its further top-level keys. `folder`, such as `train/`, is cut off from the names of files;
    the shards are then listed without split.

    Raises:
        CatalogError: the store acknowledged the file and has nothing.
    """
    inside = (
        replace(shard.with_names(lambda name: name.removeprefix(folder)), partition=None) if folder else shard
        for shard in shards
    )
    listed = (shard.listed() for shard in inside)
    version = extra.get(EXTRA, {}).get("version", 0)
    if len(shards) < MANY_SHARDS:
        replace_index(store, key, emit_index(listed, extra), version)
        return
    with tempfile.TemporaryDirectory(prefix="smalti-index-") as scratch:
        path = Path(scratch, "index.json")
        with path.open("wb") as file:
            file.writelines(index_parts(listed, extra))
        if _shows_newer(store, key, version):
            return
        put_and_check(partial(store.put_file, key, path), store, key, path.stat().st_size, is_shared=True)


def replace_index(store: Store, key: str, data: bytes, version: int) -> None:
    """Put an index file unless one of a newer version is there; check that the store has a file afterwards.

    Raises:
        CatalogError: the store acknowledged the file and has nothing.
    """
    is_large = (_present(store.size, key) or 0) > MAX_REPLACED_BYTES
    if is_large and _shows_newer(store, key, version):
        return
    if is_large or not store.replaces_conditionally:
        put_and_check(partial(store.put, key, data), store, key, len(data), is_shared=True)
        return
    refused, lost = None, 0
    for _ in range(MAX_REPLACE_ATTEMPTS):
        found = _present(store.get_tagged, key)
        if found is not None and (found.data == data or version_of_index(found.data) > version):
            return
        if found is not None and found == refused:
            break  # nothing changed the file in between: the store refuses its own ETags
        absent = partial(store.put_if_absent, key, data)
        put = absent if found is None else partial(store.put_if_match, key, data, found.etag)
        try:
            # An equal file of another publisher will do as well.
            put_and_check(partial(put_own, store, key, data, put), store, key, len(data), is_shared=True, attempts=1)
        except (StoreConflict, StoreExists):
            refused = found
        except StoreError as error:
            if not error.facts.get("is_unsupported"):
                raise
            break
        except CatalogError:
            lost += 1
            if lost == ATTEMPTS:
                raise
        else:
            return
    else:
        return
    put_and_check(partial(store.put, key, data), store, key, len(data), is_shared=True)


def _present(read: Callable[[str], T], key: str) -> T | None:
    """Return what is read of an object; None if there is none."""
    try:
        return read(key)
    except StoreNotFound:
        return None


def _shows_newer(store: Store, key: str, version: int) -> bool:
    """Return whether the index file shows a version after this one; its end is read, which has Smalti's facts."""
    try:
        size = store.size(key)
        tail = store.get_range(key, max(0, size - PEEK_BYTES), size)
    except StoreNotFound:
        return False
    extra = _from_tail(tail)
    shown = version_of_index(tail) if extra is None else extra.get("version")
    return type(shown) is int and shown > version


def version_of_index(data: bytes, where: str = "") -> int:
    """Return the version that an index file shows; 0 if Smalti did not write it, or it cannot be parsed."""
    try:
        extra = parse_json(data, where=where).get(EXTRA)
    except IndexFileError:
        return 0
    version = extra.get("version") if isinstance(extra, dict) else None
    return version if type(version) is int else 0


def read_regular(data: bytes, *, where: str) -> tuple[ShardTable, str] | None:
    """Return the shards of an index file, checked as by `parse_index`, and their digest, which is `digest_of` them.

    None if its entries are not alike, or it has further top-level keys.
    """
    text = data.rstrip(b" \t\r\n")
    end = text.find(_BETWEEN, len(_HEAD)) + 1
    if not (end and text.startswith(_HEAD) and text.endswith(_TAIL)):
        return None
    try:
        (shard,), _ = parse_index(text[:end] + _TAIL, where=where)
        entries = _entries(text[len(_HEAD) : -len(_TAIL)], shard)
        return None if entries is None or shard.meta is not None else _index(entries, shard)
    except (SmaltiError, ValueError, KeyError):
        return None


def _entries(text: bytes, shard: ShardInfo) -> "pa.Table | None":
    """Return the entries, separated by commas, as rows; None if they differ in more than files and samples.

    Raises:
        ValueError: one is not JSON, or has other keys or types than that of `shard`.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json

    schema = pa.Table.from_pylist([shard.to_json()]).schema
    sizes = pa.field("column_sizes", pa.list_(pa.int64()))  # also if all columns vary in size, so that all are null
    # A separator within an entry would split it, so that neither part is an object.
    table = arrow_json.read_json(
        pa.BufferReader(text.replace(_BETWEEN, b"}\n{")),
        parse_options=arrow_json.ParseOptions(
            schema.set(schema.get_field_index("column_sizes"), sizes), unexpected_field_behavior="error"
        ),
    )
    is_whole = table.num_rows == text.count(_BETWEEN) + 1  # the reader accepts entries without a comma, too
    columns = (column.combine_chunks() for column in table.drop(["raw_data", "zip_data", "samples"]).columns)
    return table if is_whole and all(each.slice(1).equals(each.slice(0, len(each) - 1)) for each in columns) else None


def _index(entries: "pa.Table", shard: ShardInfo) -> tuple[ShardTable, str]:
    """Return the shards of entries that differ from that of `shard` in files and samples only, and their digest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def joined(*parts: Any) -> Any:  # texts and columns of texts
        return pc.binary_join_element_wise(*parts, "")

    samples = entries.column("samples").combine_chunks()
    schema = {name: list(getattr(shard.schema, name)) for name in ("names", "encodings", "sizes")}
    alike = {"compression": shard.compression, "hash_names": ",".join(shard.hash_names), "size_limit": shard.size_limit}
    columns = {name: pa.repeat(pa.scalar(value), len(samples)) for name, value in alike.items()}
    columns |= {"schema": pa.repeat(pa.scalar(0, pa.int32()), len(samples)), "samples": samples}
    line = [f"{canonical(list(schema.values()))}[null,", samples.cast(pa.string())]
    for part, file in {"raw": shard.raw, "zip": shard.zip}.items():
        if file is None:
            line.append(",null")
            continue
        names, sizes, hashes = entries.column(f"{part}_data").combine_chunks().flatten()
        digests = sorted(zip(file.hashes, hashes.flatten(), strict=True), key=lambda pair: pair[0])
        pieces = [piece for name, digest in digests for piece in (f', "{name}": "', digest, '"')]
        text = joined(pa.repeat("{", len(names)), *(pieces and [pieces[0][2:], *pieces[1:]]), "}")
        columns |= {f"{part}_name": names, f"{part}_bytes": sizes, f"{part}_hashes": text}
        dense = pc.replace_substring(pc.replace_substring(text, '": "', '":"'), '", "', '","')
        line += [',["', names, '",', sizes.cast(pa.string()), ",", dense, "]"]
    shards = ShardTable.of(own_content(file_of([pa.table(columns)], [schema])))
    lines = joined(*line, f",{canonical((shard.compression, shard.hash_names, shard.size_limit))[1:-1]}]\n")
    return shards, hashlib.sha256(NAMES_HEAD + "".join(lines.to_pylist()).encode("ascii")).hexdigest()
