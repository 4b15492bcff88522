"""The arguments of MosaicML's `dataframe_to_mds`, and the files that only its callers expect.

`mds_kwargs` are the arguments of MosaicML's writer; `mode` of Smalti's writer is accepted too.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.catalog import Manifest, new_write_id
from smalti.catalog.header import INDEX
from smalti.errors import SchemaError
from smalti.format import emit_index
from smalti.storage import Store
from smalti.writer import UploadOptions
from smalti.writer.tables.attempts import Answers
from smalti.writer.tables.packing import collect_parts
from smalti.writer.tables.plan import SampleFunction, WriteOptions
from smalti.writer.writers import WriterOptions

_KWARGS = (
    "out", "columns", "compression", "hashes", "size_limit", "keep_local", "progress_bar", "max_workers", "retry",
    "exist_ok", "mode",
)  # fmt: skip


@dataclass(frozen=True)
class MosaicCall:
    """A call by MosaicML's arguments, parsed."""

    local: str
    """Local path that the call returns; "" if there is none."""
    remote: str
    """Remote path that the call returns; "" if there is none."""
    options: WriteOptions
    uploads: UploadOptions
    samples: SampleFunction | None
    """`udf_iterable`, if it is given."""
    keeps_local: bool
    """True if the local path is to have a copy of a remote set."""

    @property
    def copy_to(self) -> str | None:
        """The place of a local copy; None if none is made."""
        return self.local if self.remote and self.keeps_local else None


def parse_call(
    mds_kwargs: Mapping[str, Any] | None,
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None,
    udf_kwargs: Mapping[str, Any] | None,
) -> MosaicCall:
    """Return what a call by MosaicML's arguments asks for.

    Raises:
        ValueError: MosaicML's writer has no such argument, one has an unusable value, or a required one is missing.
    """
    kwargs = dict(mds_kwargs or {})
    unknown = sorted(set(kwargs) - set(_KWARGS))
    if unknown:
        raise ValueError(f"`mds_kwargs` has {', '.join(unknown)}; its writer takes {', '.join(_KWARGS)}")
    local, remote = _places(kwargs.get("out"))
    if udf_iterable is not None and not kwargs.get("columns"):
        raise ValueError("`udf_iterable` makes columns of its own: name them, with their encodings, in `columns`")
    if udf_kwargs is not None and udf_iterable is None:
        raise ValueError("`udf_kwargs` are for `udf_iterable`, which was not given")
    hashes = tuple(kwargs.get("hashes") or ())
    mode = WriterOptions("", exist_ok=bool(kwargs.get("exist_ok")), mode=kwargs.get("mode")).chosen_mode()
    options = WriteOptions(
        columns=kwargs.get("columns"),
        compression=kwargs.get("compression", "zstd") or None,
        hashes=hashes,
        unlisted_hashes=() if hashes else ("xxh3_64",),
        size_limit=kwargs.get("size_limit", 1 << 26) or None,
        mode="overwrite" if remote and "mode" not in kwargs else mode,  # MosaicML replaces the index of a remote set
        progress="always" if kwargs.get("progress_bar") else False,
        write_id=new_write_id(),
        joins_shards=False,
        allow_unsafe_types=True,
    )
    samples = None if udf_iterable is None else SampleFunction(udf_iterable, dict(udf_kwargs or {}))
    return MosaicCall(local, remote, options, _uploads(kwargs), samples, bool(kwargs.get("keep_local")))


def _places(out: Any) -> tuple[str, str]:
    if isinstance(out, str | Path):
        return ("", str(out)) if "://" in str(out) or str(out).startswith("dbfs:/") else (str(out), "")
    if isinstance(out, tuple | list) and len(out) == 2:
        return str(out[0] or ""), str(out[1] or "")
    raise ValueError(f"`out` in `mds_kwargs`: expected a path, a URL, or (local, remote), found {out!r}")


def _uploads(kwargs: dict[str, Any]) -> UploadOptions:
    default = UploadOptions()
    workers, attempts = kwargs.get("max_workers"), kwargs.get("retry", default.attempts)
    if (workers is not None and workers < 1) or attempts < 1:
        raise ValueError(f"`max_workers` and `retry` are at least 1, found {workers} and {attempts}")
    return UploadOptions(workers or default.max_workers, attempts=attempts, hash_rows=True)


def put_folder_indexes(store: Store, answers: Answers) -> None:
    """Store an index in the folder of each Spark partition that has rows.

    Raises:
        SchemaError: There are no rows.
    """
    parts = collect_parts(answers)
    if not parts:
        raise SchemaError("the DataFrame has no rows; nothing was written")
    for part in parts:
        folder = part.tail.raw.basename.rpartition("/")[0]
        shards = [info.with_names(lambda name: name.rpartition("/")[2]) for info in part.shards()]
        store.put(f"{folder}/{INDEX}", emit_index([shard.listed() for shard in shards]))


def copy_set(store: Store, manifest: Manifest, local: Store) -> None:
    """Copy the files of a set and its index to a folder of this machine, for readers that know no versions."""
    keys = [file.basename for info in manifest.shards for file in info.stored_files]
    for key in (*keys, INDEX):  # the index last
        with tempfile.TemporaryDirectory(prefix="smalti-copy-") as folder:
            file = Path(folder) / "object"
            with file.open("wb") as out:
                store.fetch(key, out)
            local.put_file(key, file)
