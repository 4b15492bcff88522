"""Where a DataFrame's rows came from, as far as Spark tells, and a write id that a repeated job finds again.

`source_of` reads no row. What it gives is kept in the manifest:

    {"sources": [{"format": "parquet", "paths": [...], "files": 12, "num_bytes": 34567, "digest": "..."},
                 {"format": "delta", "paths": [...], "version": 7},
                 {"format": "iceberg", "table": "...", "snapshot": "8"}],
     "plan": "..."}

A digest of files is over path, size and modification time of each, as Spark listed them when the DataFrame was made.
`plan` is there only where equal plans over equal sources are known to give equal rows; see `spark.lineage.plans`.

Sizes and times of the files that a Spark Connect DataFrame reads.

A client of Spark Connect sees neither the plan nor what Spark listed for it; it is told names alone. So the server is
asked to list these files, once before the rows are read and once after: as a source of binary files of which no content
is selected, by the server's own credentials, and without a file being opened.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from smalti.errors import CatalogError, StoreNotFound
from smalti.spark.lineage.plans import plan_digest
from smalti.spark.lineage.table_logs import delta_version, iceberg_snapshot, table_above
from smalti.storage.redact import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Listed = list[tuple[str, int, str]]
"""Path, bytes and modification time of files."""

_PARALLELISM = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_TASKS = "64"  # by default a task for each file, 8 ms of the server's for each; by 64, 1 ms
_FILES_PER_TASK = 5_000  # paths in one request, 1 MB
_GLOB = re.compile(r"([\\*?{}\[\]])")
_ESCAPED = re.compile(r"\\([\\*?{}\[\]])")
_GONE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.*?)\.(?: SQLSTATE: \w+)?$", re.MULTILINE)


def files_now(df: "DataFrame") -> Listed | None:
    """The files of a Spark Connect DataFrame as they are now, for `check_unchanged`; None of any other.

    None as well where the server does not list them (other credentials, a table whose files nobody may name). A million
    take 200 MB.
    """
    if hasattr(df, "_jdf"):
        return None
    from pyspark.errors import PySparkException

    try:
        return list_files(df)
    except (PySparkException, StoreNotFound):
        return None


def list_files(df: "DataFrame") -> Listed:
    """The files of a Spark Connect DataFrame as they are now.

    Raises:
        StoreNotFound: one of them is gone; its `path` says which.
        PySparkException: the server does not list them.
    """
    names = sorted({unquote(name) for name in df.inputFiles()})
    with _few_tasks(df.sparkSession):
        parts = (names[begin : begin + _FILES_PER_TASK] for begin in range(0, len(names), _FILES_PER_TASK))
        return [file for part in parts for file in _list(df.sparkSession, part)]


def _list(spark: "SparkSession", names: Sequence[str]) -> Listed:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    try:
        files = spark.read.format("binaryFile").load([_GLOB.sub(r"\\\1", name) for name in names])
        rows = files.select("path", "length", functions.expr("unix_millis(modificationTime)").alias("time")).collect()
    except AnalysisException as error:
        gone = _GONE.search(str(error))
        if gone is None:
            raise
        path = _ESCAPED.sub(r"\1", gone[1])
        raise StoreNotFound(f"{redact(path)} is gone", path=path) from error
    return [(row["path"], row["length"], str(row["time"])) for row in rows]


@contextmanager
def _few_tasks(spark: "SparkSession") -> Iterator[None]:
    """Files listed by few tasks; a number that somebody chose is kept."""
    from pyspark.errors import PySparkException

    if spark.conf.get(_PARALLELISM, None) is not None:
        yield
        return
    with suppress(PySparkException):  # not everybody may set it, and it changes no answer
        spark.conf.set(_PARALLELISM, _TASKS)
    try:
        yield
    finally:
        with suppress(PySparkException):
            spark.conf.unset(_PARALLELISM)


_IDENTITY = 1  # raise it when the same job should no longer find what it wrote
_MOST_PATHS = 16
_AT_ONCE = 10_000
_MOST_FIELDS = "spark.sql.debug.maxToStringFields"
_STATUS = re.compile(r"\{path=(.*); isDirectory=false; length=(\d+);.*?modification_time=(\d+);")
_WAP = "spark.wap.branch"
"""A session with it reads a branch where a table has it, although the query names none."""
_OF_TIMES = frozenset(
    (
        "as-of-timestamp",
        "start-snapshot-id",
        "end-snapshot-id",
        "start-timestamp",
        "end-timestamp",
        "stream-from-timestamp",
    )
)
"""Options of Iceberg by which a query reads what was there at a time, or what was added since."""
_DELTA = re.compile(r"\[version=(\d+),")
_WHATEVER = (
    "spark.sql.warehouse.", "spark.sql.execution.arrow.", "spark.sql.shuffle.", "spark.sql.adaptive.",
    "spark.sql.catalogImplementation", "spark.sql.artifact.", "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.debug.", "spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes", "spark.sql.extensions",
)  # fmt: skip
"""Settings that change how rows are computed, not which."""


def source_of(df: "DataFrame") -> dict[str, Any]:
    """What Spark tells about the rows' source, for a manifest's lineage (JSON); empty where it tells nothing.

    On Spark Connect these are the names of the files, and no plan.
    """
    if not hasattr(df, "_jdf"):
        return _of_names(df.inputFiles())
    plan = df._jdf.queryExecution().analyzed()
    found = [_of_leaf(leaf) for leaf in _items(plan.collectLeaves())]
    sources = [source for source, _ in found if source]
    if not sources:
        return {}
    told: dict[str, Any] = {"sources": sources}
    if all(source and is_exact for source, is_exact in found) and plan.deterministic():
        text, settings = _tree_of(plan, df.sparkSession.conf), _settings_of(df)
        digest = plan_digest(json.loads(plan.toJSON()), text, about=settings)
        if digest is not None:
            told["plan"] = digest
    return told


@contextmanager
def require_unchanged(df: "DataFrame") -> Iterator[None]:
    """Run a block that reads a DataFrame's rows, then check that its source files are those that Spark had listed.

    Raises:
        CatalogError: A file was replaced or removed, so that rows of two states may have been read.
    """
    listed = files_now(df)
    yield
    check_unchanged(df, listed)


def check_unchanged(df: "DataFrame", before: Listed | None) -> None:
    """Return only if the files that the DataFrame was made of are still those: for after their rows were read.

    Files that came since are not looked at.

    Args:
        df: The DataFrame.
        before: What `files_now` gave before: on Spark Connect, what they are compared with; without it none is looked
            at there.

    Raises:
        CatalogError: a file was replaced or removed, so that rows of two states may have been read.
    """
    if not hasattr(df, "_jdf"):
        _check_again(df, before or [])
        return
    for leaf in _items(df._jdf.queryExecution().analyzed().collectLeaves()):
        if leaf.getClass().getSimpleName() == "LogicalRelation" and _is_of_files(leaf.relation()):
            relation = leaf.relation()
            then, _ = _listed(relation.location().allFiles())
            _check_same(then, _listed(_listed_anew(df, relation).allFiles())[0])


def _check_again(df: "DataFrame", before: Listed) -> None:
    if not before:
        return
    try:
        now = list_files(df)
    except StoreNotFound as error:
        raise _other(error.path, "is gone") from error
    _check_same(before, now)


def _check_same(before: Sequence[tuple[str, int, str]], now: Sequence[tuple[str, int, str]]) -> None:
    found = {path: (num_bytes, time) for path, num_bytes, time in now}
    for path, num_bytes, time in before:
        if path not in found:
            raise _other(path, "is gone")
        if found[path] != (num_bytes, time):
            raise _other(path, f"of {num_bytes} bytes was replaced by {found[path][0]} bytes")


def _other(path: str, what: str) -> CatalogError:
    return CatalogError(
        f"source file {redact(path)} {what} since the DataFrame was made: rows of before and after may have been read, "
        "and nothing was published. Make the DataFrame anew and write again, while nobody changes its files",
        path=redact(path),
    )


def _is_of_files(relation: Any) -> bool:
    """Whether a relation reads files that Spark listed itself."""
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    return bool(relation.location().getClass().getSimpleName() == "InMemoryFileIndex")


def _listed_anew(df: "DataFrame", relation: Any) -> Any:
    """The index of the relation's files as they are now; its own stays as it was."""
    jvm: Any = df.sparkSession._jvm
    sources = jvm.org.apache.spark.sql.execution.datasources
    none, uncached = (
        getattr(each, "MODULE$") for each in (getattr(jvm.scala, "None$"), getattr(sources, "NoopCache$"))
    )
    roots, session = relation.location().rootPaths(), df._jdf.sparkSession()
    return sources.InMemoryFileIndex(session, roots, relation.options(), none, uncached, none, none)


def write_id_of(source: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """The name of the write of this source with these options: equal for equal ones, on every machine.

    Args:
        source: From `source_of`.
        options: Everything else that decides what is written; JSON.

    Returns:
        32 hex digits; None where it cannot be told that another run writes the same rows.
    """
    if "plan" not in source or not source.get("sources"):
        return None
    facts = [_IDENTITY, dict(source), dict(options)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _items(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    return (sequence.apply(place) for place in range(sequence.size()))


def _tree_of(plan: Any, conf: Any) -> str:
    """The plan as text, with nothing left out for its length: what Spark shows follows a setting of the session."""
    before = conf.get(_MOST_FIELDS, None)
    conf.set(_MOST_FIELDS, str(1 << 30))
    try:
        return str(plan.toString())
    finally:
        if before is None:
            conf.unset(_MOST_FIELDS)
        else:
            conf.set(_MOST_FIELDS, before)


def _settings_of(df: "DataFrame") -> dict[str, Any]:
    told = df._jdf.sparkSession().conf().getAll().mkString("\0")  # PySpark 3.5 has no such call of its own
    settings = (setting.partition(" -> ")[::2] for setting in told.split("\0"))
    chosen = {
        name: value for name, value in settings if name.startswith("spark.sql.") and not name.startswith(_WHATEVER)
    }
    return {"version": df.sparkSession.version, "settings": chosen}


def _of_leaf(leaf: Any) -> tuple[dict[str, Any], bool]:
    """What a leaf of the plan reads, and whether that tells its content apart from any other."""
    name = leaf.getClass().getSimpleName()
    if name == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
        return _of_files(leaf.relation())
    if name == "DataSourceV2Relation":
        return _of_table(leaf)
    return {}, False


def _of_files(relation: Any) -> tuple[dict[str, Any], bool]:
    location = relation.location()
    paths = [redact(path.toString()) for path in _items(location.rootPaths())]
    shown: dict[str, Any] = {"format": _format_of(relation), "paths": paths[:_MOST_PATHS]}
    kind, text = location.getClass().getSimpleName(), location.toString()
    if "Delta" in kind or "Tahoe" in kind:
        version = _DELTA.search(text)
        told = {} if version is None else {"version": int(version.group(1))}
        return {**shown, "format": "delta", **told}, version is not None
    if kind != "InMemoryFileIndex":
        return shown, False
    files, is_whole = _listed(location.allFiles())
    options = hashlib.sha256(str(sorted(map(str, _items(relation.options().toSeq())))).encode()).hexdigest()
    return {**shown, **_digest_of(files), "options": options}, is_whole


def _format_of(relation: Any) -> str:
    return str(relation.fileFormat().toString()).split("@", 1)[0].rsplit(".", 1)[-1].lower()


def _listed(statuses: Any) -> tuple[list[tuple[str, int, str]], bool]:
    """Path, size and time of every file, from Hadoop's own text for them: a call for each would take minutes."""
    files, size = [], statuses.size()
    for begin in range(0, size, _AT_ONCE):
        files += _STATUS.findall(statuses.slice(begin, begin + _AT_ONCE).mkString("\n"))
    return [(path, int(length), time) for path, length, time in files], len(files) == size


def _digest_of(files: Sequence[tuple[str, int, str]]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for path, num_bytes, mark in sorted(files):
        digest.update(f"{path}\0{num_bytes}\0{mark}\n".encode("utf-8", "surrogateescape"))
    return {"files": len(files), "num_bytes": sum(size for _, size, _ in files), "digest": digest.hexdigest()}


def _of_table(leaf: Any) -> tuple[dict[str, Any], bool]:
    """A table of a catalog: Iceberg's, which names its snapshot, or one of which only the name is known."""
    table = leaf.table()
    kind = table.getClass().getName()
    if not kind.startswith("org.apache.iceberg."):
        return {"format": kind.rsplit(".", 1)[-1], "table": redact(table.name())}, False
    options = {str(name).lower(): str(value) for name, value in leaf.options().asCaseSensitiveMap().items()}
    snapshot = _snapshot_read(table, options, leaf.conf().getConfString(_WAP, ""))
    told = {} if snapshot is None else {"snapshot": snapshot}
    if options:
        told["options"] = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
    return {"format": "iceberg", "table": redact(table.name()), **told}, snapshot is not None


def _snapshot_read(table: Any, options: Mapping[str, str], audited: str) -> str | None:
    """The snapshot that a query of an Iceberg table reads; None where it reads changes, or none can be named."""
    if _OF_TIMES & options.keys() or audited:
        return None
    if "snapshot-id" in options:
        return options["snapshot-id"]
    asked = table.snapshotId()  # of a query that names one
    if asked is not None:
        return str(asked)
    name = options.get("branch") or options.get("tag") or table.branch()
    found = table.table().currentSnapshot() if name is None else table.table().snapshot(name)
    return None if found is None else str(found.snapshotId())


def _of_names(files: Sequence[str]) -> dict[str, Any]:
    """What names of files tell: their number and a digest, and the table that they belong to where it lies here."""
    if not files:
        return {}
    digest = hashlib.sha256("\n".join(sorted(files)).encode("utf-8", "surrogateescape")).hexdigest()
    source: dict[str, Any] = {"format": "files", "files": len(files), "names_digest": digest}
    table = table_above(files)
    if table is not None:
        source |= {"paths": [table.url], "delta_version": delta_version(table), "iceberg": iceberg_snapshot(table)}
    return {"sources": [{name: value for name, value in source.items() if value is not None}]}
