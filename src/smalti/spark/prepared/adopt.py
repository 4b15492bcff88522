"""The adoption of a data set of `write_prepared` as a `PreparedTable`, so that no image is prepared again.

The parts stay in place; they are read once for the digests of their images, and no image is decoded.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.errors import FormatError, StoreNotFound
from smalti.sources.image_folder import ImageFolder
from smalti.spark.prepare import PrepareOptions
from smalti.spark.prepared.newest import show_table
from smalti.spark.prepared.parts import ROW, digests_of
from smalti.spark.prepared.store import local_part
from smalti.spark.prepared.table import PreparedPart, PreparedTable
from smalti.spark.prepared.update import recipe_of, table_of
from smalti.storage import open_store


def adopt_prepared(
    folder: ImageFolder,
    path: str | Path,
    below: str,
    *,
    name: str,
    options: PrepareOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PreparedTable | None:
    """Make a table of the data set of `write_prepared` in the folder `below` of `path`; None if there is none. Blocks.

    Args:
        folder: The images, as they were listed when the data set was written.
        path: As for `update_prepared`, which builds on this table from now on.
        below: The folder, relative to `path`.
        name: Name of the table.
        options: Options of `prepare_images` by which the data set was written.
        storage_options: Credentials and endpoint of the store at `path`.

    Raises:
        FormatError: The data set is of other files.
    """
    store, options = open_store(path, storage_options), options or PrepareOptions()
    try:
        report = json.loads(store.get(f"{below}/_prepared.json"))
    except StoreNotFound:
        return None
    parts: dict[str, PreparedPart] = {}
    rows: list[dict[str, str | None]] = [
        {"path": file, "digest": None, "part": None, "reason": reason} for file, reason in report["bad"]
    ]
    for part in report["parts"]:
        key = f"{below}/{report['write_id']}/{part['name']}"
        parts[key] = PreparedPart(part["rows"], part["num_bytes"])
        with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as scratch:
            for batch in pq.ParquetFile(local_part(store, key, Path(scratch))).iter_batches(columns=["path", "image"]):
                rows += [{**row, "part": key, "reason": None} for row in digests_of(batch)]
    if {row["path"] for row in rows} != {file.path for file in folder.files} or len(rows) != len(folder.files):
        raise FormatError(f"{store.locate(below)} holds other images than {folder.source} did; prepare them again")
    table = table_of(store, name, folder, options, pa.Table.from_pylist(rows, ROW), parts)
    show_table(store, table, recipe_of(folder, options))
    return table
