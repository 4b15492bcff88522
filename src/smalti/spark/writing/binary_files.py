"""Contents of `spark.read.format("binaryFile")` that tasks read themselves, instead of getting them through the JVM.

Spark reads the content of such a file in the JVM and sends it to Python. Where the column arrives as the source has it,
Spark is asked for the address of each file instead, and the task opens it. Every other column, filter and join is
Spark's work as before, and rows keep their order. Holds for files that executors see in their file system (`file:`) and
for frames of classic Spark that are not cached; any other frame gets its contents from Spark.

A partition of such rows is small, so they are joined to partitions of about a shard: Spark counts 4 MiB for every file,
which makes a task of 30 photos. Measured with and without in turn, 3,000 photos of 41 KB on `local[2]`: 3.1 times as
fast, 1.3 times as fast as with `coalesce(4)` before the call.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import CatalogError, SchemaError, StoreNotFound
from smalti.sources.contents import read_contents
from smalti.spark.lineage import scala_items
from smalti.spark.tasks import RowRecipe, record_recipe, select_columns
from smalti.storage import Store
from smalti.storage.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITION_BYTES = 1 << 26
_TASKS_PER_CORE = 2
_FORMAT = "org.apache.spark.sql.execution.datasources.binaryfile.BinaryFileFormat"
_CONTENT = "content"
_SOURCE_COLUMNS = frozenset(("path", "length", _CONTENT))
_MAX_LENGTH = "spark.sql.sources.binaryFile.maxLength"
_MAX_BYTES = (1 << 31) - 1
"""Largest file that Spark reads, which is the largest value of an Arrow array, and the default of `_MAX_LENGTH`."""
_MAX_PARTITIONS = (1 << 31) - 1
_ADDRESS, _SIZE = "__smalti_address", "__smalti_size"
_NARROW = frozenset(("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint"))
_WIDE = frozenset(("Sort", "Join", "Repartition", "RepartitionByExpression", "GlobalLimit", "LocalLimit"))
"""Operators that pass a column on unchanged, beside those of `_NARROW`, which keep the source's partitions."""


def read_in_tasks(df: "DataFrame", columns: Sequence[tuple[str, str]], selected: "DataFrame") -> None:
    """Record for `selected`, some columns of `df`, how tasks read its contents of files; do nothing where they cannot.

    `columns` has each column as its name in `df` and in `selected`, in order.
    """
    if not hasattr(df, "_jdf"):
        return
    from py4j.protocol import Py4JError

    # A build of Spark whose plans have other methods or classes, or that forbids to call them: Spark reads the files.
    with suppress(Py4JError, AttributeError, TypeError, ValueError):
        found = _find(df)
        if found is None:
            return
        sources, num_bytes, is_narrow = found
        contents = frozenset(place for place, (name, _) in enumerate(columns) if name in sources)
        if not contents:
            return
        others = [pair for place, pair in enumerate(columns) if place not in contents]
        frame = select_columns(_with_addresses(df), [*others, (_ADDRESS, _ADDRESS), (_SIZE, _SIZE)])
        if is_narrow:
            cores = df.sparkSession.sparkContext.defaultParallelism
            count = max(-(-num_bytes // _PARTITION_BYTES), _TASKS_PER_CORE * cores)
            frame = frame.coalesce(min(count, _MAX_PARTITIONS))  # tables have the largest number for an unknown size
        names = tuple(name for _, name in columns)
        record_recipe(selected, RowRecipe(frame, partial(read_batches, names, contents)))


_Contents = tuple[frozenset[str], int, bool]
"""The columns of a DataFrame that are contents of files as the source has them, the bytes of all files of the source,
and whether the partitions are those of the source."""


def _find(df: "DataFrame") -> _Contents | None:
    """Return the contents of local files in the columns of a frame, by its query's plan; None if there are none."""
    execution = df._jdf.queryExecution()
    plan = execution.analyzed()
    leaves = [leaf for leaf in scala_items(plan.collectLeaves()) if _is_of_local_files(leaf)]
    if len(leaves) != 1 or "InMemoryRelation" in execution.withCachedData().toString():
        return None
    if int(df.sparkSession.conf.get(_MAX_LENGTH, None) or _MAX_BYTES) < _MAX_BYTES:
        return None
    outputs: dict[int, frozenset[str]] = {}
    for name, attribute in zip(df.columns, scala_items(plan.output()), strict=True):
        outputs[_id_of(attribute)] = outputs.get(_id_of(attribute), frozenset()) | {name}
    return _trace(plan, outputs)


def _is_of_local_files(leaf: Any) -> bool:
    """Return whether a leaf of a plan reads binary files that executors find in their file system."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    if relation.fileFormat().getClass().getName() != _FORMAT:
        return False
    partitions = relation.partitionSchema().fieldNames()  # folders such as `length=1` replace the column of this name
    if _SOURCE_COLUMNS.intersection(name.lower() for name in partitions):
        return False
    roots = relation.location().rootPaths().mkString("\0").split("\0")
    return all(root.startswith("file:") for root in roots)


def _trace(plan: Any, wanted: Mapping[int, frozenset[str]]) -> _Contents | None:
    """Return which of the wanted attributes (names of columns by their ids) are contents as the source has them."""
    kind = plan.getClass().getSimpleName()
    if _is_of_local_files(plan):
        found = [wanted.get(_id_of(each)) for each in scala_items(plan.output()) if each.name() == _CONTENT]
        names = next((each for each in found if each), None)
        return None if names is None else (names, int(plan.relation().sizeInBytes()), True)
    if kind not in _NARROW | _WIDE:
        return None
    if kind == "Project":
        wanted = _before(plan, wanted)
    for child in scala_items(plan.children()):
        if (contents := _trace(child, wanted)) is not None:
            return (*contents[:2], contents[2] and kind in _NARROW)
    return None


def _before(project: Any, wanted: Mapping[int, frozenset[str]]) -> dict[int, frozenset[str]]:
    """Return the wanted attributes as they are called below a projection; those that it computes are left out."""
    below: dict[int, frozenset[str]] = {}
    for expression in scala_items(project.projectList()):
        names = wanted.get(_id_of(expression))
        source = expression.child() if expression.getClass().getSimpleName() == "Alias" else expression
        if names and source.getClass().getSimpleName() == "AttributeReference":
            below[_id_of(source)] = below.get(_id_of(source), frozenset()) | names
    return below


def _id_of(attribute: Any) -> int:
    """Return the number by which Spark's plans refer to a column, whatever its name."""
    return int(attribute.exprId().id())


def _with_addresses(df: "DataFrame") -> "DataFrame":
    """Return the rows of the frame with address and size of the file that each comes from.

    The two columns are added to the source of the query, and passed through all of its projections.
    """
    jvm: Any = df.sparkSession._jvm
    to_sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    added: list[Any] = []

    def frame_of(plan: Any) -> "DataFrame":
        names = df._jdf.getClass().getName().split(".")  # Spark 4 moved the class
        rows = reduce(getattr, names, jvm).ofRows(df._jdf.sparkSession(), plan)
        made: DataFrame = type(df)(rows, df.sparkSession)
        return made

    def extended(plan: Any) -> Any:
        """Return the part of the query that contains the source, with the columns; None for other parts."""
        if _is_of_local_files(plan):
            source = frame_of(plan)
            analyzed = source.withColumns({_ADDRESS: source["path"], _SIZE: source["length"]})._jdf.queryExecution()
            added.extend(list(scala_items(analyzed.analyzed().output()))[-2:])
            return analyzed.analyzed()
        children = list(scala_items(plan.children()))
        parts = [extended(child) for child in children]
        if not any(parts):
            return None
        kind = plan.getClass().getSimpleName()
        if kind == "View":
            return parts[0]
        if kind == "Project":
            columns = to_sequence([*scala_items(plan.projectList()), *added])
            return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, parts[0])
        return plan.withNewChildren(to_sequence([new or old for new, old in zip(parts, children, strict=True)]))

    return frame_of(extended(df._jdf.queryExecution().analyzed()) or df._jdf)


def read_batches(
    names: tuple[str, ...], contents: frozenset[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with these columns: those at the places `contents` read from the files that the rows name."""
    store = _WholePaths("/")
    for batch in batches:
        _check_listed(batch)
        begin = 0
        for content in _contents_of(store, batch.column(batch.num_columns - 2)):
            part = batch.slice(begin, len(content))
            _check_sizes(content, part)
            others = iter(part.columns)
            columns = [content if place in contents else next(others) for place in range(len(names))]
            yield pa.RecordBatch.from_arrays(columns, list(names))
            begin += len(content)


class _WholePaths(LocalStore):
    """Files of this machine by their whole paths, also those with names that are no keys of an object store."""

    def local_path(self, key: str) -> Path:
        """Return the file of the key."""
        return self.root / key


def _check_listed(rows: pa.RecordBatch) -> None:
    """Refuse files that are larger than an array can have, before one of them is read."""
    addresses, sizes = rows.column(rows.num_columns - 2), rows.column(rows.num_columns - 1)
    largest = pc.max(sizes).as_py()
    if largest is not None and largest > _MAX_BYTES:
        address = addresses.filter(pc.equal(sizes, largest))[0]
        raise SchemaError(f"{address} has {largest} bytes; Spark reads files of at most {_MAX_BYTES} bytes")


def _contents_of(store: Store, addresses: pa.Array) -> Iterator[pa.Array]:
    """Yield the contents of the files, in arrays for some rows each; null for a row without a file."""
    for is_file, group in groupby(addresses.to_pylist(), key=lambda address: address is not None):
        run = list(group)
        if not is_file:
            yield pa.nulls(len(run), pa.binary())
            continue
        try:
            yield from read_contents(store, [address.removeprefix("file:").lstrip("/") for address in run])
        except StoreNotFound as error:
            raise CatalogError(
                f"{error.message}: a source file was removed while it was read; nothing was published. List the files "
                "again"
            ) from error


def _check_sizes(content: pa.Array, rows: pa.RecordBatch) -> None:
    """Refuse contents whose lengths are not those that Spark has listed."""
    lengths, listed = pc.binary_length(content), rows.column(rows.num_columns - 1)
    if lengths.cast(pa.int64()).equals(listed):
        return
    row = next(
        row for row, (one, other) in enumerate(zip(lengths, listed, strict=True)) if one.as_py() != other.as_py()
    )
    raise CatalogError(
        f"{rows.column(rows.num_columns - 2)[row]} changed while it was read: {listed[row]} bytes when it was listed, "
        f"{lengths[row]} now; nothing was published. Make the DataFrame again, and write it again"
    )
