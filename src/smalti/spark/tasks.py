"""Python functions that run once per Spark partition, each with exactly one answer; every writer here uses them.

Spark may start a task several times: after a failure, or speculatively while a slow attempt runs. Every attempt has a
name of its own, so that no two write to the same place, and answers with one row. The rows that Spark returns to the
driver are those of the successful attempts, one per task. No version names what other attempts wrote.

A `SmaltiError` that a task raises is raised again on the driver with its type. Spark turns a task's exception into the
text of another one, on classic sessions and on Spark Connect alike; so type, message and facts of the error are encoded
in that text, between two marks.

Also here: the check that Spark's executors can use a store, made by one of them before rows are read.

Executors get the storage options of a store, and neither the environment nor the files of the driver: a login that only
the driver has would be found by the first shard, when minutes of a query are done.
"""

import base64
import contextlib
import functools
import gc
import json
import os
import platform
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from smalti import errors
from smalti.catalog.manifest import FOLDER, INDEX
from smalti.errors import ArgumentTypeError, MissingDependency, SchemaError, SmaltiError, StoreError
from smalti.process import is_connect, use_driver_python
from smalti.spark.session import ARROW_BATCHES, SMALL_FILES, missing_connector
from smalti.storage import Store
from smalti.writer.tables.plan import Answers, Attempt, TaskFunction, one_answer_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_MARK = re.compile(r"<smalti-error:([A-Za-z0-9+/=]+)>")
_MISSING = re.compile(
    r"ModuleNotFoundError: No module named '"
    r"(smalti|brotli|cramjam|fsspec|numpy|pandas|PIL|platformdirs|pyarrow|simplejpeg|xxhash|zstandard)\b"
)
_TOO_OLD = re.compile(
    r"\b(pandas|pyarrow) >= (\S+) must be installed; however, (?:it was not found|your version is (\S+)\.(?!\S))",
    re.IGNORECASE,
)
_VERSIONS = re.compile(r"Python in worker has different version:? (.+?) than that in driver:? ([\d.]+),")
_NO_WORKER = re.compile(r"^Error from python worker:\n(.+?)\nPYTHONPATH was:", re.MULTILINE | re.DOTALL)
_NO_PROGRAM = re.compile(r"Cannot run program \"([^\"]+)\": error=\d+, ([^\n]+)")
_PYTHON_ERROR = re.compile(r"^(?:\s*File \".+\n(?: {4}.*\n)+)+(\w[\w.]*: .+)$", re.MULTILINE)
_ADVICE_BY_TEXT = (
    (
        re.compile("ExecutorLostFailure|Container killed|OutOfMemoryError|exited unexpectedly"),
        "An executor ended or ran out of memory: raise `spark.executor.memoryOverhead` (Python) or "
        "`spark.executor.memory` (the JVM), or give each task fewer rows with `dataframe.repartition(n)`.",
    ),
    (
        re.compile("stopped SparkContext|SparkContext was shut down|Cannot call methods on a stopped"),
        "The session has ended: start one, and make the DataFrame again.",
    ),
    (
        re.compile("Connection refused|Answer from Java side is empty|Error while sending|failed to connect"),
        "Spark's driver does not answer any more: look at its log, start a session, and make the DataFrame again.",
    ),
    (re.compile("maxResultSize"), "Raise `spark.driver.maxResultSize`."),
    (re.compile("ancelled"), "The job was cancelled: call again."),
)
"""Patterns in the text of an error, and what to do."""
_BEFORE_START = "before the session is started; `smalti.spark.build_session()` does so on this machine"
_ADVICE = f"install 'smalti[spark]' on every machine, or set PYSPARK_PYTHON to a Python that has it, {_BEFORE_START}"
_Fact = str | int | float | bool | None
_MAX_MESSAGE = 16_000  # characters; Spark Connect truncates longer error texts
BatchTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that makes batches of those of one partition, in a task."""
_ANSWER = pa.schema([("task", pa.int32()), ("attempt", pa.string()), ("answer", pa.string())])
_ANSWER_FOR_SPARK = "task int, attempt string, answer string"
_BINARY_FILES = re.compile(r"^[\s:+|-]*Relation [^\[\n]*\[.*\] binaryFile$", re.MULTILINE)
"""A source of binary files in the text of a plan, with its name if it is a table."""
_FRAME_ADVICE = {
    "pandas": ("spark.createDataFrame(frame)", "pyarrow.Table.from_pandas(frame)"),
    "polars": ("spark.createDataFrame(frame.to_pandas())", "frame.to_arrow()"),
    "pyarrow": ("spark.createDataFrame(frame.to_pandas())", "frame"),
    "pyspark.pandas": ("frame.to_spark()", ""),
    "pyspark.rdd": ("frame.toDF()", ""),
    "pyspark.core.rdd": ("frame.toDF()", ""),
}
"""By module of the argument: the call that makes a Spark DataFrame of it, and what `MDSWriter.write_batch` takes."""


@dataclass(frozen=True)
class LocalFrame:
    """Rows of this process in place of a DataFrame: work on a few rows takes less time than starting Spark."""

    schema: "StructType"
    batches: Iterator[pa.RecordBatch]
    """Each with all columns of the schema."""


def session_of(spark: "SparkSession | Callable[[], SparkSession]") -> "SparkSession":
    """Return the session, or the one that a function starts."""
    return spark() if callable(spark) else spark


class EncodedError(RuntimeError):
    """A task's error, encoded for its way through Spark; `decode_errors` decodes it."""


def encode_errors(task: Callable[[Iterator[Any]], Iterator[Any]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the task with every `SmaltiError` that it raises encoded for its way to the driver."""

    @functools.wraps(task)
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from task(batches)
        except SmaltiError as error:
            facts = {name: value for name, value in error.facts.items() if isinstance(value, _Fact)}
            text = json.dumps([type(error).__name__, error.message[:_MAX_MESSAGE], facts])
            mark = f"<smalti-error:{base64.b64encode(text.encode()).decode()}>"
            raise EncodedError(f"{error} {mark}") from error

    return run


@contextlib.contextmanager
def decode_errors() -> Iterator[None]:
    """Run Spark actions inside: raise an executor's `SmaltiError` with its type, and Spark's own errors with advice.

    Errors of an unusable Python on the executors become `MissingDependency`, refused queries `SchemaError`, and others
    of Spark `SmaltiError`. Errors of this process are raised unchanged.
    """
    try:
        yield
    except SmaltiError:
        raise
    except Exception as error:
        text = str(error)
        original = decode_error(text)
        if original is None and not isinstance(error, ImportError):  # an ImportError is of this process
            original = _explain(text)
        if original is None and type(error).__module__.split(".")[0] in ("pyspark", "py4j"):
            original = _advised(error, text)
        if original is None:
            raise
        raise original from error


def _advised(error: Exception, text: str) -> SmaltiError:
    """Return an error of Spark's in one line, with what to do."""
    if (advice := missing_connector(text)) is not None:
        return MissingDependency(f"{advice} Spark says: {_first_line(text)}")
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"AnalysisException", "ParseException"}:
        return SchemaError(
            f"Spark refuses the query of the DataFrame: {_first_line(text)} Correct the query; `dataframe.show()` "
            "gives the same error."
        )
    advice = next((advice for pattern, advice in _ADVICE_BY_TEXT if pattern.search(text)), None)
    if advice is None:
        advice = "The error is one of the DataFrame's own query or functions: `dataframe.foreach(print)` gives it too."
    reason = _PYTHON_ERROR.findall(text)
    return SmaltiError(f"Spark could not compute the rows: {reason[-1] if reason else _first_line(text)}. {advice}")


def _first_line(text: str) -> str:
    """Return the first line that says what happened; the JVM's begin with a line about the call."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    about = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (about or lines or ["(no message)"])[0][:1000]


def _explain(text: str) -> SmaltiError | None:
    """Return the error of a task that failed before it ran any code of this library; None for other failures."""
    if match := _MISSING.search(text):
        return MissingDependency(
            f"the Python of Spark's executors has no module {match[1]!r}: {_ADVICE}", module=match[1]
        )
    if match := _TOO_OLD.search(text):
        name = match[1].lower()
        return MissingDependency(
            f"the Python of Spark's executors needs {name} {match[2]} or later, found {match[3] or 'none'}: {_ADVICE}",
            module=name,
        )
    if match := _VERSIONS.search(text):
        worker = ".".join(re.findall(r"\d+", match[1]))
        return MissingDependency(
            f"Spark's executors run Python {worker} and this program runs {match[2]}; Spark needs the same minor "
            f"version on both: set PYSPARK_PYTHON to a Python {match[2]} that has 'smalti[spark]', {_BEFORE_START}",
            found=worker,
            expected=match[2],
        )
    if match := _NO_PROGRAM.search(text):
        return MissingDependency(
            f"Spark's executors cannot run {match[1]!r} as Python: {match[2]}; {_ADVICE}", program=match[1]
        )
    if match := _NO_WORKER.search(text):
        reason = match[1].splitlines()[-1].strip()
        return MissingDependency(
            f"Spark's executors cannot start a Python worker; their Python may be older than this program's, which is "
            f"{platform.python_version()}: {reason}; {_ADVICE}",
            reason=reason,
        )
    return None


def decode_error(text: str) -> SmaltiError | None:
    """Return the error that a task encoded in this text; None if there is none."""
    match = _MARK.search(text)
    if match is None:
        return None
    name, message, facts = json.loads(base64.b64decode(match.group(1)))
    kind: Any = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, SmaltiError)):
        kind = SmaltiError
    return kind(message, **facts)  # type: ignore[no-any-return]  # kind is a subclass of SmaltiError


def run_tasks(df: "DataFrame", work: TaskFunction, *, as_pandas: bool = False, store: Store | None = None) -> Answers:
    """Run `work` once per partition, and return its answers (JSON) in order of the partitions; blocks until all are in.

    If a Python function makes the rows of the frame (`map_in_arrow`), it runs in the same task as `work`, and its
    batches do not pass through the JVM.

    Args:
        df: The rows.
        work: What each task does.
        as_pandas: True gives `work` pandas DataFrames, as Spark makes them, instead of Arrow batches.
        store: Store that the tasks write to: that they can is checked first.

    Raises:
        SmaltiError: What `work` raised on an executor, with its type; or a task answered twice.
        StoreError, MissingDependency: As for `require_reach`.
    """
    if store is not None:
        require_reach(df.sparkSession, store)
    use_driver_python(df.sparkSession)
    frame, make = (df, None) if as_pandas else recipe_of(df) or (df, None)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise SmaltiError("this function runs inside a Spark task only")
        attempt = Attempt.new(context.partitionId())
        answer = json.dumps(work(batches if make is None else make(batches), attempt))
        _exclude_modules_from_gc()
        row = pa.RecordBatch.from_arrays(
            [pa.array([attempt.task], pa.int32()), pa.array([attempt.attempt]), pa.array([answer])], schema=_ANSWER
        )
        yield row.to_pandas() if as_pandas else row

    with decode_errors(), settings_by_default(frame.sparkSession, _settings_for(frame)):
        run = frame.mapInPandas if as_pandas else frame.mapInArrow
        rows = run(encode_errors(task), _ANSWER_FOR_SPARK).collect()
    return one_answer_each([(Attempt(row["task"], row["attempt"]), json.loads(row["answer"])) for row in rows])


def _settings_for(frame: "DataFrame") -> Mapping[str, str]:
    """Return settings with which the tasks of a frame take less time; without its plan, those of any frame."""
    if hasattr(frame, "_jdf"):
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError):  # a cluster that does not show its plans
            if _BINARY_FILES.search(frame._jdf.queryExecution().analyzed().toString()):
                return {**ARROW_BATCHES, **SMALL_FILES}
    return ARROW_BATCHES


def run_jobs(
    spark: "SparkSession | Callable[[], SparkSession] | None",
    jobs: Sequence[tuple[int, Any]],
    work: TaskFunction,
    *,
    num_tasks: int = 1,
    store: Store | None = None,
) -> Answers:
    """Run `work` over jobs, divided among the tasks by their places; each task gets its own in order.

    Args:
        spark: The session, or a function that starts one; None runs all jobs here.
        jobs: The place of each, and what is to be done (JSON), which a task gets as such a pair.
        work: What each task does.
        num_tasks: Number of the tasks.
        store: Store that the tasks write to: that they can is checked first.

    Raises:
        SmaltiError: As for `run_tasks` and `require_reach`.
    """
    if spark is None:
        return run_here(work, iter(jobs))
    texts = [(place, json.dumps(job)) for place, job in jobs]
    frame = make_frame(session_of(spark), texts, "place int, job string")
    if num_tasks == 1:
        frame = frame.coalesce(1)
    else:
        frame = frame.repartitionByRange(num_tasks, "place").sortWithinPartitions("place")

    def decoded(batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
        rows = (row for batch in batches for row in batch.to_pylist())
        return work(((row["place"], json.loads(row["job"])) for row in rows), attempt)

    return run_tasks(frame, decoded, store=store)


def run_here(work: TaskFunction, items: Iterator[Any]) -> Answers:
    """Run `work` once over batches or jobs, in this process."""
    attempt = Attempt.new(0)
    return [(attempt, work(items, attempt))]


def make_frame(spark: "SparkSession", rows: Any, schema: "StructType | str | None" = None) -> "DataFrame":
    """Return a DataFrame of rows of this process; classic PySpark has them pass through a Python worker."""
    use_driver_python(spark)
    if isinstance(rows, pa.Table) and int(spark.version.split(".")[0]) < 4:
        rows = rows.to_pandas()
    return spark.createDataFrame(rows, schema)


def to_arrow(df: "DataFrame") -> pa.Table:
    """Return the rows of a DataFrame; releases of PySpark before 4 have no such call."""
    return df.toArrow() if hasattr(df, "toArrow") else pa.Table.from_pandas(df.toPandas())


def map_in_arrow(df: "DataFrame", task: BatchTask, schema: "StructType | str") -> "DataFrame":
    """Return the frame with the batches that `task` makes of those of each partition; lazy.

    On a local master the workers run this process's interpreter; see `use_driver_python`.
    """
    use_driver_python(df.sparkSession)
    made = df.mapInArrow(encode_errors(task), schema)
    _RECIPES[made] = df, task
    return made


_RowRecipe = tuple["DataFrame", BatchTask]
"""The making of a DataFrame's rows: those of another one, which Spark computes, by a Python function in a task."""
_RECIPES: "WeakKeyDictionary[DataFrame, _RowRecipe]" = WeakKeyDictionary()
"""The recipe of each DataFrame, the object, by which `run_tasks` makes its rows; frames derived from it have none."""


def recipe_of(df: "DataFrame") -> _RowRecipe | None:
    """Return the recipe of a DataFrame; None if Spark computes its rows, or keeps those that were computed."""
    recipe = _RECIPES.get(df)
    return None if recipe is None or df.is_cached else recipe


def select_columns(df: "DataFrame", columns: Sequence[tuple[str, str]]) -> "DataFrame":
    """Return some columns of a frame, each as its name and its new name; a recipe of the frame stays."""
    from pyspark.sql import functions

    chosen = [(functions.col(quoted(name)), new) for name, new in columns]
    selected = df.select(*(column.alias(new) for column, new in chosen))
    recipe = recipe_of(df)
    if recipe is not None:
        frame, make = recipe
        old, names = [name for name, _ in columns], [name for _, name in columns]

        def make_selected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (batch.select(old).rename_columns(names) for batch in make(batches))

        _RECIPES[selected] = frame, make_selected
    return selected


@functools.cache  # once per process; garbage of later tasks is collected
def _exclude_modules_from_gc() -> None:
    """Exclude all objects so far, mostly imported modules, from garbage collection.

    Spark's worker collects garbage after every task, and would traverse all imported modules each time: 80 ms of a
    task of half a second.
    """
    gc.collect()
    gc.freeze()


def set_by_default(spark: "SparkSession", settings: Mapping[str, str]) -> list[str]:
    """Set those settings that the session has not, as far as it permits that; return their names."""
    from pyspark.errors import PySparkException

    changed = [name for name in settings if spark.conf.get(name, None) is None]
    with contextlib.suppress(PySparkException):
        for name in changed:
            spark.conf.set(name, settings[name])
    return changed


@contextlib.contextmanager
def settings_by_default(spark: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    """Have settings inside the block on a session that has none of its own for them."""
    from pyspark.errors import PySparkException

    changed = set_by_default(spark, settings)
    try:
        yield
    finally:
        with contextlib.suppress(PySparkException):
            for name in changed:
                spark.conf.unset(name)


def require_frame(frame: Any, what: str, *, is_set: bool = False) -> None:
    """Return only if `frame` is a DataFrame of classic Spark or Spark Connect.

    `is_set` says that it becomes a shard set, which `MDSWriter` could write without Spark.

    Raises:
        TypeError: It is not; the message has the call that makes one of it.
        SchemaError: It is a streaming DataFrame.
    """
    kind = type(frame)
    if all(hasattr(kind, name) for name in ("mapInArrow", "sparkSession", "schema")):
        require_bounded(frame, what)
        return
    if frame is None:
        raise ArgumentTypeError(f"{what} must be a Spark DataFrame, none was given")
    known = [prefix for prefix in _FRAME_ADVICE if f"{kind.__module__}.".startswith(f"{prefix}.")]
    rows, batch = _FRAME_ADVICE[known[-1]] if known else ("spark.createDataFrame(rows)", "")
    without = f"; without Spark, `MDSWriter(out=..., columns=...)` and its `write_batch({batch})`"
    raise ArgumentTypeError(
        f"{what} must be a Spark DataFrame, found {kind.__module__}.{kind.__qualname__}: give {rows}"
        f"{without if is_set and batch else ''}"
    )


def require_bounded(frame: Any, what: str) -> None:
    """Return only if `frame` is no streaming DataFrame.

    Raises:
        SchemaError: It is one, of `spark.readStream`, which has no end.
    """
    if getattr(frame, "isStreaming", False):
        raise SchemaError(
            f"{what} is a streaming DataFrame, whose rows never end: "
            "`frame.writeStream.format('mds').option('checkpointLocation', folder).start(out)` appends a version for "
            "each of its batches, and none twice. With PySpark 3.5, `frame.writeStream.foreachBatch(lambda batch, "
            "number: dataframe_to_mds(batch, out, mode='append', write_id=f'stream-{number}'))"
            ".option('checkpointLocation', folder).start()` does the same"
        )


def quoted(name: str) -> str:
    """Return the name of a column as Spark's functions take it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def require_reach(spark: "SparkSession", store: Store, *, writes: bool = True) -> None:
    """Return if executors on other machines can use a store; folders, and a local master, are not checked.

    Args:
        spark: The session.
        store: Store that the tasks of a job will use.
        writes: Whether the tasks will write to it: one puts a small object, and removes it.

    Raises:
        StoreError: An executor cannot; of the class that it raised.
        MissingDependency: The executors have no Smalti, or not the client of the store.
    """
    if store.local_path(INDEX) is not None or not has_remote_executors(spark):
        return

    def use(jobs: Iterator[Any], _: Attempt) -> dict[str, Any]:
        for _job in jobs:
            pass
        if not writes:
            store.exists(INDEX)
            return {}
        probe = f"{FOLDER}/probe-{secrets.token_hex(8)}"
        store.put(probe, b"1")
        with contextlib.suppress(StoreError):  # an executor may be allowed to write only; a vacuum removes it
            store.delete(probe)
        return {}

    try:
        run_jobs(spark, [(0, None)], use)
    except MissingDependency:
        raise
    except StoreError as error:
        raise type(error)(
            f"Spark's executors cannot use {store.url}; no row was read: {error.message} They have the storage options "
            "of the call, and neither the environment nor the files of this machine, such as ~/.aws: give the "
            "credentials as `storage_options`, or set their variables on the executors (`spark.executorEnv.NAME`) "
            "before the session is started.",
            **error.facts,
        ) from error


def has_remote_executors(spark: "SparkSession") -> bool:
    """Return whether tasks run in processes that this one did not start with its own environment."""
    if is_connect(spark) or os.environ.get("DATABRICKS_RUNTIME_VERSION"):
        return True
    master = str(spark.conf.get("spark.master", ""))
    return master != "local" and not master.startswith("local[")
