"""Updates of prepared images without Spark, and the rows that can be read afterwards."""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from assets.drawing import draw_flower
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions, prepare_file
from smalti.spark.prepared.rows import read_labelled
from smalti.spark.prepared.table import PreparedTable, write_prepared_rows
from smalti.spark.prepared.update import PreparedUpdate, _Update
from smalti.storage import Store, open_store
from smalti.writer.tables.plan import Attempt
from tests.stores import MemoryStore

OPTIONS = PrepareOptions(size=16, validation_fraction=0.25)


def bring_up_to_date(store, folder, options, prepare) -> PreparedUpdate:
    """Do what `update_prepared` does, with any function that prepares files."""

    class Update(_Update):
        def _prepare(self, spark, paths, write_id):
            return prepare(paths, write_id)

    update = Update(store, folder, options)
    return update.find() or update.run(None)


@dataclass
class Preparer:
    """Updates without Spark: tasks are called one after the other, five files each."""

    source: Path
    store: Store = field(default_factory=MemoryStore)
    asked: list[str] = field(default_factory=list)

    def update(self, options: PrepareOptions = OPTIONS) -> PreparedUpdate:
        """Bring the images up to date with the folder."""
        self.asked = []
        folder = list_images(str(self.source))
        return bring_up_to_date(self.store, folder, options, partial(self.prepared, options=options))

    def prepared(self, paths, write_id, options: PrepareOptions = OPTIONS):
        """Do the work of the tasks, for files of the folder as it is now."""
        folder, raw = list_images(str(self.source)), open_store(self.source)
        files = {file.path: file for file in folder.files}
        self.asked, answers = list(paths), []
        for task, begin in enumerate(range(0, len(paths), 5)):
            rows = [
                prepare_file(
                    raw,
                    {
                        "path": path,
                        "label": files[path].label,
                        "class_name": folder.classes[files[path].label],
                        "split": "stale",  # the table's counts, not this one
                        "num_bytes": files[path].num_bytes,
                    },
                    options,
                )
                for path in paths[begin : begin + 5]
            ]
            attempt = Attempt.new(task)
            batches = iter([pa.RecordBatch.from_pylist(rows, PREPARED)])
            answers.append((attempt, write_prepared_rows(self.store, write_id, batches, attempt)))
        return answers


PREPARED = pa.schema(
    [
        ("image", pa.binary()),
        ("label", pa.int32()),
        ("class_name", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("split", pa.string()),
        ("path", pa.string()),
        ("source_width", pa.int32()),
        ("source_height", pa.int32()),
        ("error", pa.string()),
    ]
)


def photo(kind: str, number: int) -> bytes:
    return draw_flower(kind, number=number, size=(40, 32))


def rows_of(table: PreparedTable) -> dict[str, tuple[int, str, str]]:
    """Return every row of the version, as a reader gets it: path to label, split and digest of the image."""
    rows = {}
    for part in table.parts:
        found = [
            row for batch in read_labelled(table.store, part.raw.basename, table.good) for row in batch.to_pylist()
        ]
        assert len(found) == part.samples
        for row in found:
            assert row["path"] not in rows
            rows[row["path"]] = (row["label"], row["split"], hashlib.sha256(row["image"]).hexdigest())
    assert len(rows) == table.rows
    return rows
