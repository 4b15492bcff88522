"""The source of a DataFrame's rows, as far as Spark knows it, and a write id by which a repeated write is recognised.

`source_of` reads no row. Its result is kept in the manifest:

    {"sources": [{"format": "parquet", "paths": [...], "files": 12, "num_bytes": 34567, "digest": "..."},
                 {"format": "delta", "paths": [...], "version": 7},
                 {"format": "iceberg", "table": "...", "snapshot": "8"}],
     "plan": "..."}

The digest of files is over path, size and modification time of each, as Spark listed them when the DataFrame was made.
`plan` is there only for plans that are known to give the same rows from the same sources: those of relational operators
and Spark's own deterministic expressions. Functions of the user are opaque, and data from memory is not compared.

A client of Spark Connect sees neither the plan nor Spark's listing, but only the names of the files. So the server is
asked for the history of the Delta table that may be in their folder. And `require_unchanged`, which checks that source
files stay the same while their rows are read, asks the server to list them, once before and once after: as a source of
binary files whose content is not selected, with the server's own credentials, and without opening a file.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from smalti.errors import CatalogError, StoreNotFound
from smalti.redaction import redact
from smalti.spark.tasks import settings_by_default
from smalti.writer.tables.versions import derive_write_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Excluded: operators that keep the first of several rows, whose order may vary (Deduplicate, Window, Limit, Sample).
_OPERATORS = frozenset(
    f"org.apache.spark.sql.catalyst.plans.logical.{name}"
    for name in (
        "Aggregate", "Distinct", "Except", "Expand", "Filter", "Generate", "Intersect", "Join", "Project",
        "Repartition", "RepartitionByExpression", "ResolvedHint", "Sort", "SubqueryAlias", "Union", "Unpivot", "View",
    )
)  # fmt: skip
_SOURCES = frozenset(
    f"org.apache.spark.sql.execution.datasources.{name}" for name in ("LogicalRelation", "v2.DataSourceV2Relation")
)
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_NONDETERMINISTIC = re.compile(
    r"UDF|UDAF|UDTF|Udf|Invoke|NewInstance|Lambda|Current|^Now$|LocalTimestamp|Rand|Uuid|Shuffle|Subquery|Exists|"
    r"ListQuery|First|Last|AnyValue|Mode$|Collect|Sample|Input|Partition[Ii][Dd]|MonotonicallyIncreasingID|Outer|"
    r"Java|Scala|Variable|Session|Secret|HyperLogLog|Sketch"
)
_EXPRESSION_ID = re.compile(r"#\d+")
FileList = list[tuple[str, int, str]]
"""Path, bytes and modification time of files."""
_MAX_PATHS = 16  # root paths that are kept in the manifest
_STATUSES_PER_CALL = 10_000  # file statuses that one call to the JVM returns
_MAX_FIELDS_SETTING = "spark.sql.debug.maxToStringFields"
_STATUS = re.compile(r"\{path=(.*); isDirectory=false; length=(\d+);.*?modification_time=(\d+);")
"""One file in Hadoop's text of its status."""
_LISTED_ONCE = "InMemoryFileIndex"
"""Class of an index of files that Spark listed itself."""
_DELTA_VERSION = re.compile(r"\[version=(\d+),")
_PARTITIONS_AND_FILE = re.compile(r"(?:/[^/=]+=[^/]*)*/[^/]*$")
"""The part of a file's address below the folder of its table."""
_WAP_BRANCH = "spark.wap.branch"
"""Setting of a session: the branch that it reads of every Iceberg table that has it, even if the query names none."""
_TIME_OPTIONS = frozenset(
    (
        "as-of-timestamp",
        "start-snapshot-id",
        "end-snapshot-id",
        "start-timestamp",
        "end-timestamp",
        "stream-from-timestamp",
    )
)
"""Options of Iceberg by which a query reads the state at a time, or what was added since."""
_NEUTRAL_SETTINGS = (
    "spark.sql.warehouse.", "spark.sql.execution.arrow.", "spark.sql.shuffle.", "spark.sql.adaptive.",
    "spark.sql.catalogImplementation", "spark.sql.artifact.", "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.debug.", "spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes", "spark.sql.extensions",
)  # fmt: skip
"""Prefixes of settings that change how rows are computed, but not which rows."""
_LISTING_TASKS = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "64"}
"""Spark starts one task per file by default, which costs the server 8 ms per file; 64 cost 1 ms."""
_FILES_PER_REQUEST = 5_000  # 1 MB of paths
_GLOB = re.compile(r"([\\*?{}\[\]])")
_ESCAPED = re.compile(r"\\([\\*?{}\[\]])")
_GONE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.*?)\.(?: SQLSTATE: \w+)?$", re.MULTILINE)


def source_of(df: "DataFrame") -> dict[str, Any]:
    """Return what Spark knows of the rows' source, for the lineage in a manifest (JSON); empty if unknown.

    On Spark Connect this is a digest of the names of the files, and no plan.
    """
    if not hasattr(df, "_jdf"):
        return _of_names(df)
    plan = df._jdf.queryExecution().analyzed()
    found = [_of_leaf(leaf) for leaf in scala_items(plan.collectLeaves())]
    sources = [source for source, _ in found if source]
    if not sources:
        return {}
    lineage: dict[str, Any] = {"sources": sources}
    if all(source and is_exact for source, is_exact in found) and plan.deterministic():
        text, settings = _tree_of(plan, df.sparkSession.conf), _settings_of(df)
        digest = plan_digest(json.loads(plan.toJSON()), text, about=settings)
        if digest is not None:
            lineage["plan"] = digest
    return lineage


def write_id_of(source: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Return the id of the write of this source with these options: equal for equal ones, on every machine.

    Returns:
        32 hex digits; None if it is not certain that another run with the same id writes the same rows.
    """
    if "plan" not in source or not source.get("sources"):
        return None
    return derive_write_id(source, options)


def _of_leaf(leaf: Any) -> tuple[dict[str, Any], bool]:
    """Return what a leaf of the plan reads, and whether that identifies its content."""
    if _is_of_files(leaf):
        return _of_files(leaf.relation())
    if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
        return _of_table(leaf)
    return {}, False


def _of_files(relation: Any) -> tuple[dict[str, Any], bool]:
    location = relation.location()
    paths = [redact(path.toString()) for path in scala_items(location.rootPaths())]
    name = str(relation.fileFormat().toString()).split("@", 1)[0].rsplit(".", 1)[-1].lower()
    shown: dict[str, Any] = {"format": name, "paths": paths[:_MAX_PATHS]}
    kind, text = location.getClass().getSimpleName(), location.toString()
    if "Delta" in kind or "Tahoe" in kind:
        version = _DELTA_VERSION.search(text)
        found = {} if version is None else {"version": int(version.group(1))}
        return {**shown, "format": "delta", **found}, version is not None
    if kind != _LISTED_ONCE:
        return shown, False
    files, is_whole = _listed(location.allFiles())
    options = hashlib.sha256(str(sorted(map(str, scala_items(relation.options().toSeq())))).encode()).hexdigest()
    return {**shown, **_digest_of(files), "options": options}, is_whole


def _listed(statuses: Any) -> tuple[FileList, bool]:
    """Return path, size and time of each file, and whether these are all files.

    They are parsed from Hadoop's text of many statuses, because a call to the JVM for each file would take minutes.
    """
    files, size = [], statuses.size()
    for begin in range(0, size, _STATUSES_PER_CALL):
        files += _STATUS.findall(statuses.slice(begin, begin + _STATUSES_PER_CALL).mkString("\n"))
    return [(path, int(length), time) for path, length, time in files], len(files) == size


def _digest_of(files: FileList) -> dict[str, Any]:
    digest = hashlib.sha256()
    for path, num_bytes, mark in sorted(files):
        digest.update(f"{path}\0{num_bytes}\0{mark}\n".encode("utf-8", "surrogateescape"))
    return {"files": len(files), "num_bytes": sum(size for _, size, _ in files), "digest": digest.hexdigest()}


def _of_table(leaf: Any) -> tuple[dict[str, Any], bool]:
    """Return a table of a catalog: Iceberg's with its snapshot, any other by its name only."""
    table = leaf.table()
    kind = table.getClass().getName()
    if not kind.startswith("org.apache.iceberg."):
        return {"format": kind.rsplit(".", 1)[-1], "table": redact(table.name())}, False
    options = {str(name).lower(): str(value) for name, value in leaf.options().asCaseSensitiveMap().items()}
    snapshot = _snapshot_read(table, options, leaf.conf().getConfString(_WAP_BRANCH, ""))
    found = {} if snapshot is None else {"snapshot": snapshot}
    if options:
        found["options"] = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
    return {"format": "iceberg", "table": redact(table.name()), **found}, snapshot is not None


def _snapshot_read(table: Any, options: Mapping[str, str], wap_branch: str) -> str | None:
    """Return the snapshot that a query of an Iceberg table reads; None if it reads changes, or if it is unknown."""
    if _TIME_OPTIONS & options.keys() or wap_branch:
        return None
    if "snapshot-id" in options:
        return options["snapshot-id"]
    snapshot = table.snapshotId()  # if the query names one
    if snapshot is not None:
        return str(snapshot)
    name = options.get("branch") or options.get("tag") or table.branch()
    found = table.table().currentSnapshot() if name is None else table.table().snapshot(name)
    return None if found is None else str(found.snapshotId())


def _of_names(df: "DataFrame") -> dict[str, Any]:
    """Return the source by the names of its files: number, digest, and the newest version of their Delta table."""
    files = df.inputFiles()
    if not files:
        return {}
    digest = hashlib.sha256("\n".join(sorted(files)).encode("utf-8", "surrogateescape")).hexdigest()
    source: dict[str, Any] = {"format": "files", "files": len(files), "names_digest": digest}
    folder = _PARTITIONS_AND_FILE.sub("", unquote(files[0]))
    version = _delta_version(df.sparkSession, folder)
    return {"sources": [source if version is None else {**source, "paths": [redact(folder)], "delta_version": version}]}


def _delta_version(session: "SparkSession", folder: str) -> int | None:
    """Return the newest version of the Delta table in a folder, as the server says; None if there is none."""
    from pyspark.errors import PySparkException

    try:
        newest = session.sql(f"DESCRIBE HISTORY delta.`{folder.replace('`', '``')}` LIMIT 1").first()
    except PySparkException:  # no table of Delta, or a server without Delta
        return None
    return None if newest is None else int(newest["version"])


def scala_items(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    return (sequence.apply(place) for place in range(sequence.size()))


def _tree_of(plan: Any, conf: Any) -> str:
    """Return the plan as text, whole: a setting of the session limits the length of what Spark shows."""
    before = conf.get(_MAX_FIELDS_SETTING, None)
    conf.set(_MAX_FIELDS_SETTING, str(1 << 30))
    try:
        return str(plan.toString())
    finally:
        if before is None:
            conf.unset(_MAX_FIELDS_SETTING)
        else:
            conf.set(_MAX_FIELDS_SETTING, before)


def _settings_of(df: "DataFrame") -> dict[str, Any]:
    text = df._jdf.sparkSession().conf().getAll().mkString("\0")  # PySpark 3.5 has no such call of its own
    settings = (setting.partition(" -> ")[::2] for setting in text.split("\0"))
    chosen = {
        name: value
        for name, value in settings
        if name.startswith("spark.sql.") and not name.startswith(_NEUTRAL_SETTINGS)
    }
    return {"version": df.sparkSession.version, "settings": chosen}


@contextmanager
def require_unchanged(df: "DataFrame") -> Iterator[None]:
    """Run a block that reads a DataFrame's rows, then check that its source files are those that Spark had listed.

    Files that were added since are ignored. On Spark Connect, files are compared with those that the server lists
    before the block; nothing is checked if it cannot.

    Raises:
        CatalogError: A file was replaced or removed, so that rows of two states may have been read.
    """
    if not hasattr(df, "_jdf"):
        listed = files_now(df)
        yield
        if listed:
            try:
                _check_same(listed, list_files(df))
            except StoreNotFound as error:
                raise _changed(error.path, "is gone") from error
        return
    yield
    for leaf in scala_items(df._jdf.queryExecution().analyzed().collectLeaves()):
        if _is_of_files(leaf) and leaf.relation().location().getClass().getSimpleName() == _LISTED_ONCE:
            relation = leaf.relation()
            then, _ = _listed(relation.location().allFiles())
            _check_same(then, _listed(_list_again(df, relation).allFiles())[0])


def files_now(df: "DataFrame") -> FileList | None:
    """Return the files of a Spark Connect DataFrame as they are now; a million files take 200 MB.

    None if the server cannot list the files, for instance for lack of credentials.
    """
    from pyspark.errors import PySparkException

    try:
        return list_files(df)
    except (PySparkException, StoreNotFound):
        return None


def _check_same(before: FileList, now: FileList) -> None:
    found = {path: (num_bytes, time) for path, num_bytes, time in now}
    for path, num_bytes, time in before:
        if path not in found:
            raise _changed(path, "is gone")
        if found[path] != (num_bytes, time):
            raise _changed(path, f"of {num_bytes} bytes was replaced by {found[path][0]} bytes")


def _changed(path: str, what: str) -> CatalogError:
    return CatalogError(
        f"source file {redact(path)} {what} since the DataFrame was made: rows of before and after may have been read, "
        "and nothing was published. Make the DataFrame again, and write it while no program changes its files",
        path=redact(path),
    )


def _is_of_files(leaf: Any) -> bool:
    """Return whether a leaf of a plan reads files."""
    is_relation = leaf.getClass().getSimpleName() == "LogicalRelation"
    return is_relation and bool(leaf.relation().getClass().getSimpleName() == "HadoopFsRelation")


def _list_again(df: "DataFrame", relation: Any) -> Any:
    """Return an index of the relation's files as they are now; its own index is not changed."""
    jvm: Any = df.sparkSession._jvm
    sources = jvm.org.apache.spark.sql.execution.datasources
    none, uncached = (
        getattr(each, "MODULE$") for each in (getattr(jvm.scala, "None$"), getattr(sources, "NoopCache$"))
    )
    roots, session = relation.location().rootPaths(), df._jdf.sparkSession()
    return sources.InMemoryFileIndex(session, roots, relation.options(), none, uncached, none, none)


def list_files(df: "DataFrame") -> FileList:
    """Return the files of a Spark Connect DataFrame as they are now.

    Raises:
        StoreNotFound: A file is gone; the fact `path` is its path.
        PySparkException: The server cannot list them.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    names = sorted({unquote(name) for name in df.inputFiles()})
    spark, found = df.sparkSession, FileList()
    with settings_by_default(spark, _LISTING_TASKS):
        for begin in range(0, len(names), _FILES_PER_REQUEST):
            part = [_GLOB.sub(r"\\\1", name) for name in names[begin : begin + _FILES_PER_REQUEST]]
            time = functions.expr("unix_millis(modificationTime)").alias("time")
            try:
                rows = spark.read.format("binaryFile").load(part).select("path", "length", time).collect()
            except AnalysisException as error:
                gone = _GONE.search(str(error))
                if gone is None:
                    raise
                path = _ESCAPED.sub(r"\1", gone[1])
                raise StoreNotFound(f"{redact(path)} is gone", path=path) from error
            found += [(row["path"], row["length"], str(row["time"])) for row in rows]
    return found


def plan_digest(nodes: Sequence[Mapping[str, Any]], text: str, *, about: Mapping[str, Any]) -> str | None:
    """Return a digest that two plans share if they are equal apart from the numbers that Spark gave their columns.

    None for a plan with an operator or expression that may give other rows the next time.

    Args:
        nodes: The plan as parsed from `TreeNode.toJSON`.
        text: The plan as Spark's tree of text, which has details of casts that the JSON lacks.
        about: Everything else that decides the rows: session settings, Spark's version.
    """
    for node in _objects(nodes):
        if "class" in node and not _is_known(str(node["class"])):
            return None
        # The text of other literals, such as bytes and arrays, is a memory address.
        kind = node.get("dataType")
        is_plain = isinstance(kind, str) and kind not in ("binary", "variant", "calendarinterval")
        if node.get("class") == f"{_EXPRESSIONS}Literal" and not is_plain:
            return None
    numbers: dict[str, int] = {}
    plan = _numbered(list(nodes), numbers)
    facts = [plan, _EXPRESSION_ID.sub("#", text), dict(about)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _objects(item)


def _is_known(name: str) -> bool:
    if name in _OPERATORS or name in _SOURCES:
        return True
    return name.startswith(_EXPRESSIONS) and not _NONDETERMINISTIC.search(name.rsplit(".", 1)[-1])


def _numbered(value: Any, numbers: dict[str, int]) -> Any:
    """Return a plan with columns numbered in order of appearance; Spark numbers them over the whole session."""
    if isinstance(value, Mapping):
        if str(value.get("product-class", "")).endswith(".ExprId"):
            return numbers.setdefault(str(value["id"]), len(numbers))
        return {name: _numbered(item, numbers) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbered(item, numbers) for item in value]
    return value
