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

Also here: the state of a table by the files of its folder. A table whose state is the same has the same rows.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from smalti.errors import CatalogError, SmaltiError, StoreNotFound
from smalti.redaction import redact
from smalti.spark.tasks import settings_by_default
from smalti.storage import ObjectInfo, open_store
from smalti.writer.tables.versions import derive_write_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
_COMMIT = re.compile(r"_delta_log/\d{20}\.json")
_STAGED = re.compile(r"_delta_log/_(?:staged_)?commits/")
_SETTLED_SECONDS = 3.0  # some stores keep times in seconds: a file may change twice in one, and keep its size
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
_NOT_FOUND = "underlying files have been updated"
"""Words of Spark's error about a file that it had listed and that is gone when it is read."""


def source_of(df: "DataFrame") -> dict[str, Any]:
    """Return what Spark knows of the rows' source, for the lineage in a manifest (JSON); empty if unknown.

    On Spark Connect this is a digest of the names of the files, and no plan.
    """
    if not hasattr(df, "_jdf"):
        return _of_names(df)
    plan = df._jdf.queryExecution().analyzed()
    described = [_of_leaf(leaf) for leaf in _items(plan.collectLeaves())]
    sources = [source for source, _ in described if source]
    if not sources:
        return {}
    lineage: dict[str, Any] = {"sources": sources}
    if all(source and is_exact for source, is_exact in described) and plan.deterministic():
        text = df._jdf.sparkSession().conf().getAll().mkString("\0")  # PySpark 3.5 has no such call of its own
        settings = dict(setting.partition(" -> ")[::2] for setting in text.split("\0"))
        names = [name for name in settings if name.startswith("spark.sql.") and not name.startswith(_NEUTRAL_SETTINGS)]
        chosen = {name: settings[name] for name in names}
        about = {"version": df.sparkSession.version, "settings": chosen}
        digest = plan_digest(plan.toJSON(), _text_of(plan, df.sparkSession.conf), about=about)
        if digest is not None:
            lineage["plan"] = digest
    return lineage


def digest_of(files: Iterable[Iterable[Any]]) -> str:
    """Return a digest of facts of files, in this order; hex."""
    digest = hashlib.sha256()
    for facts in files:
        digest.update("\0".join(map(str, facts)).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


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
    if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
        return _of_table(leaf)
    relation = _files_of(leaf)
    if relation is None:
        return {}, False
    location = relation.location()
    paths = [redact(path.toString()) for path in _items(location.rootPaths())]
    name = str(relation.fileFormat().toString()).split("@", 1)[0].rsplit(".", 1)[-1].lower()
    shown: dict[str, Any] = {"format": name, "paths": paths[:_MAX_PATHS]}
    kind = location.getClass().getSimpleName()
    if "Delta" in kind or "Tahoe" in kind:
        version = _DELTA_VERSION.search(location.toString())
        known = {} if version is None else {"version": int(version.group(1))}
        return {**shown, "format": "delta", **known}, version is not None
    if kind != _LISTED_ONCE:
        return shown, False
    files, is_whole = _listed(location.allFiles())
    options = hashlib.sha256(str(sorted(map(str, _items(relation.options().toSeq())))).encode()).hexdigest()
    shown |= {"files": len(files), "num_bytes": sum(size for _, size, _ in files), "digest": digest_of(sorted(files))}
    return {**shown, "options": options}, is_whole


def _listed(statuses: Any) -> tuple[FileList, bool]:
    """Return path, size and time of each file, and whether these are all files.

    They are parsed from Hadoop's text of many statuses, because a call to the JVM for each file would take minutes.
    """
    files, size = [], statuses.size()
    for begin in range(0, size, _STATUSES_PER_CALL):
        files += _STATUS.findall(statuses.slice(begin, begin + _STATUSES_PER_CALL).mkString("\n"))
    return [(path, int(length), time) for path, length, time in files], len(files) == size


def _of_table(leaf: Any) -> tuple[dict[str, Any], bool]:
    """Return a table of a catalog: Iceberg's with its snapshot, any other by its name only."""
    table = leaf.table()
    kind = table.getClass().getName()
    if not kind.startswith("org.apache.iceberg."):
        return {"format": kind.rsplit(".", 1)[-1], "table": redact(table.name())}, False
    options = {str(name).lower(): str(value) for name, value in leaf.options().asCaseSensitiveMap().items()}
    snapshot = _snapshot_read(table, options, leaf.conf().getConfString(_WAP_BRANCH, ""))
    known = {} if snapshot is None else {"snapshot": snapshot}
    if options:
        known["options"] = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
    return {"format": "iceberg", "table": redact(table.name()), **known}, snapshot is not None


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
    from pyspark.errors import PySparkException

    files = df.inputFiles()
    if not files:
        return {}
    digest = hashlib.sha256("\n".join(sorted(files)).encode("utf-8", "surrogateescape")).hexdigest()
    source: dict[str, Any] = {"format": "files", "files": len(files), "names_digest": digest}
    folder, newest = _PARTITIONS_AND_FILE.sub("", unquote(files[0])), None
    with suppress(PySparkException):  # no table of Delta, or a server without Delta
        newest = df.sparkSession.sql(f"DESCRIBE HISTORY delta.`{folder.replace('`', '``')}` LIMIT 1").first()
    if newest is not None:
        source |= {"paths": [redact(folder)], "delta_version": int(newest["version"])}
    return {"sources": [source]}


def _items(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    return (sequence.apply(place) for place in range(sequence.size()))


def _text_of(plan: Any, conf: Any) -> str:
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


@contextmanager
def require_unchanged(df: "DataFrame") -> Iterator[None]:
    """Run a block that reads a DataFrame's rows, then check that its source files are those that Spark had listed.

    Files that were added since are ignored. On Spark Connect, files are compared with those that the server lists
    before the block; nothing is checked if it cannot.

    Raises:
        CatalogError: A file was replaced or removed, so that rows of two states may have been read.
    """
    listed = None if hasattr(df, "_jdf") else files_now(df)
    try:
        yield
    except SmaltiError as error:
        if _NOT_FOUND in f"{error} {error.__cause__}":
            _check_files(df, listed)
        raise
    _check_files(df, listed)


def _check_files(df: "DataFrame", listed: FileList | None) -> None:
    """Return only if the source files are those that Spark had listed, or of a client of Spark Connect, `listed`."""
    if hasattr(df, "_jdf"):
        for relation in map(_files_of, _items(df._jdf.queryExecution().analyzed().collectLeaves())):
            if relation is not None and relation.location().getClass().getSimpleName() == _LISTED_ONCE:
                then, _ = _listed(relation.location().allFiles())
                _check_same(then, _listed(_list_again(df, relation).allFiles())[0])
    elif listed:
        try:
            _check_same(listed, list_files(df))
        except StoreNotFound as error:
            raise _changed(error.path, "is gone") from error


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
    known = {path: (num_bytes, mark) for path, num_bytes, mark in now}
    for path, num_bytes, mark in before:
        if path not in known:
            raise _changed(path, "is gone")
        if known[path] != (num_bytes, mark):
            raise _changed(path, f"of {num_bytes} bytes was replaced by {known[path][0]} bytes")


def _changed(path: str, what: str) -> CatalogError:
    return CatalogError(
        f"source file {redact(path)} {what} since the DataFrame was made: rows of before and after may have been read, "
        "and nothing was published. Make the DataFrame again, and write it while no program changes its files",
        path=redact(path),
    )


def _files_of(leaf: Any) -> Any:
    """Return the relation of a leaf of a plan that reads files; None for any other leaf."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = leaf.relation()
    return relation if relation.getClass().getSimpleName() == "HadoopFsRelation" else None


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
            changed = functions.expr("unix_millis(modificationTime)").alias("time")
            try:
                rows = spark.read.format("binaryFile").load(part).select("path", "length", changed).collect()
            except AnalysisException as error:
                gone = _GONE.search(str(error))
                if gone is None:
                    raise
                path = _ESCAPED.sub(r"\1", gone[1])
                raise StoreNotFound(f"{redact(path)} is gone", path=path) from error
            found += [(row["path"], row["length"], str(row["time"])) for row in rows]
    return found


def plan_digest(nodes: str, text: str, *, about: Mapping[str, Any]) -> str | None:
    """Return a digest that two plans share if they are equal apart from the numbers that Spark gave their columns.

    None for a plan with an operator or expression that may give other rows the next time.

    Args:
        nodes: The plan, from `TreeNode.toJSON`.
        text: The plan as Spark's tree of text, which has details of casts that the JSON lacks.
        about: Everything else that decides the rows: session settings, Spark's version.
    """
    numbers: dict[str, int] = {}
    unknown: list[str] = []

    def numbered(node: dict[str, Any]) -> Any:
        """Return a node; a column's number in order of appearance: Spark numbers them over the whole session."""
        if str(node.get("product-class", "")).endswith(".ExprId"):
            return numbers.setdefault(str(node["id"]), len(numbers))
        name, kind = str(node.get("class", "")), node.get("dataType")
        is_safe = name.startswith(_EXPRESSIONS) and not _NONDETERMINISTIC.search(name.rsplit(".", 1)[-1])
        if name == f"{_EXPRESSIONS}Literal":  # the text of others, such as bytes and arrays, is a memory address
            is_safe = isinstance(kind, str) and kind not in ("binary", "variant", "calendarinterval")
        if "class" in node and not (is_safe or name in _OPERATORS or name in _SOURCES):
            unknown.append(name)
        return node

    plan = json.loads(nodes, object_hook=numbered)
    facts = [plan, _EXPRESSION_ID.sub("#", text), dict(about)]
    return None if unknown else hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class TableState:
    """The state of a table at one moment."""

    digest: str
    """Another one whenever the table changes."""
    is_certain: bool
    """False if the rows may change while the digest stays, so that they have to be read again."""


def table_state(
    address: str | Path,
    kind: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.time,
) -> TableState:
    """Return the state of the table in a folder. Needs no Spark, and reads no file.

    Of Delta it is the newest commit of the log, of Iceberg every file of its metadata, of all others every file below
    the folder.

    The state is not certain in four cases: a file has neither ETag nor time; a file was put within the last three
    seconds; a folder is a link, which listings do not follow; a catalog holds commits of a Delta table that are not
    in its log yet.

    Args:
        address: The folder; or one file on this machine.
        kind: `delta`, `iceberg`, or any other format of Spark's.
        storage_options: Credentials and endpoint of the store.
        clock: Seconds since 1970.

    Raises:
        StoreNotFound: Nothing is listed: there is no such folder, or it is empty, or the address has a pattern.
        StoreError: The folder cannot be listed.
    """
    store, now = open_store(address, storage_options), clock()
    below = {"delta": "_delta_log", "iceberg": "metadata"}.get(kind, "")
    inside = store.local_path("any")
    root = None if inside is None else inside.parent
    if root is not None and root.is_file():
        stat = root.stat()
        listed = [ObjectInfo(root.name, stat.st_size, str(stat.st_mtime_ns), stat.st_mtime)]
    else:
        listed = list(store.list(below))
    if not listed:
        raise StoreNotFound(f"{redact(store.url)} has no file of a table: check the address, the mount and the format")
    has_links = (
        root is not None
        and kind != "delta"
        and any(Path(above, name).is_symlink() for above, names, _ in os.walk(root) for name in names)
    )
    decisive = [] if has_links else listed
    if kind == "delta":  # the file of the newest commit; none if a catalog may have a newer one
        is_staged = any(_STAGED.match(item.key) for item in listed)
        decisive = [] if is_staged else [item for item in listed if _COMMIT.fullmatch(item.key)][-1:]
    settled = all(item.modified and (item.changed or 0) < now - _SETTLED_SECONDS for item in decisive)
    files = sorted(decisive or listed, key=lambda item: item.key)
    digest = digest_of((item.key, item.num_bytes, item.modified) for item in files)
    return TableState(digest, is_certain=bool(decisive) and settled)
