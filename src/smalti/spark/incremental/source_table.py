"""Source files, and the runs of their rows that go through a task; what a version keeps of them is the catalogue's."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from smalti.catalog.additions.source_files import SampleRun, ipc_file
from smalti.errors import SchemaError


@dataclass(frozen=True)
class SourceFile:
    """One file that rows are made of."""

    path: str
    """Its name: what the rows that are made of it hold in their path column."""
    fingerprint: str
    """Changes when its rows would: size and time or ETag, and whatever else they depend on, such as its label."""


class RunRecorder:
    """The runs of rows that go through a task."""

    def __init__(self) -> None:
        """None yet."""
        self._paths: list[str] = []
        self._rows: list[int] = []

    def add(self, paths: "pa.Array[Any]") -> None:
        """Rows with these values in their path column.

        Raises:
            SchemaError: one has none, or another kind of value.
        """
        if paths.null_count or not (pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type)):
            raise SchemaError(f"the path column must hold the file of every row, as text; found {paths.type} or a null")
        for path in paths.to_pylist():
            if self._paths and self._paths[-1] == path:
                self._rows[-1] += 1
            else:
                self._paths.append(path)
                self._rows.append(1)

    def pack(self) -> str:
        """As text for a task's answer."""
        table = pa.table({"path": pa.array(self._paths, pa.string()), "rows": pa.array(self._rows, pa.int64())})
        return base64.b64encode(ipc_file(table)).decode()


def unpack_runs(text: str) -> Iterator[SampleRun]:
    """What `RunRecorder.pack` packed."""
    table = pa.ipc.open_file(pa.py_buffer(base64.b64decode(text))).read_all()
    return map(SampleRun, table.column("path").to_pylist(), table.column("rows").to_pylist())
