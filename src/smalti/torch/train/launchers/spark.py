"""Ranks that Spark's TorchDistributor starts on the driver's machine or, one per task, on the executors.

Credentials of stores reach the ranks through the environment, in memory: nothing here writes them to a file.

TorchDistributor reports no cause: its wrapper around torchrun drops the exit code, and its error is only "failed". So
failed ranks leave records in the run's folder. Executors do not see the folder of the script that calls `train`; they
get the source files of what `module:name` names: a task, a model, an optimiser, a schedule or a function.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import random
import re
import secrets
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from smalti.errors import MissingDependency, SmaltiError, StoreError, TrainingError
from smalti.process import end_with_parent, is_connect, use_driver_python, variables_set
from smalti.regular_files import read_regular_text
from smalti.storage import Place, Store, open_store
from smalti.storage.errors import is_transient
from smalti.storage.schemes import store_variables
from smalti.storage.store import delete_own
from smalti.torch.train.config import RunConfig
from smalti.torch.train.launchers.start import LOST, STOPPED, Program, kind_of, pickled, unpickled
from smalti.torch.train.run.events import OnEvent
from smalti.torch.train.run.store import following_run
from smalti.world import detect_world

_FAILURES = "failures"
"""Folder of the run with a folder for each attempt: a rank of an earlier one may still be ending, and record why."""
_TRACE_CHARS = 8_000  # end of a traceback that is kept
_FIELDS = {"rank": int, "time": float, "reason": str, "trace": str, "kind": str}
_INSTALLATION_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_STORAGE_OPTIONS_VARIABLE = "SMALTI_STORAGE_OPTIONS"
"""Environment variable with a run's storage options, by field of its configuration, as JSON."""
_TAIL_LINES = 40  # of an error's text
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled")


class CarriedEnvironment:
    """Environment variables that are set where this object is unpickled; the unpickled object is empty.

    On the executor, TorchDistributor pickles the arguments of the training function again, into a file. The variables
    must not be in that file, and need not be: the training process inherits the executor's environment.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_environment, (self._variables,)

    def __repr__(self) -> str:
        return f"CarriedEnvironment({', '.join(sorted(self._variables))})"


def _set_environment(variables: dict[str, str]) -> CarriedEnvironment:
    os.environ.update(variables)
    return CarriedEnvironment({})


class Broadcasted:
    """A value that is unpickled on an executor from a broadcast of Spark's.

    Spark writes the arguments of tasks to a file when they are larger than 1 MiB. With the function and its source
    files in a broadcast, those with the credentials stay small.
    """

    def __init__(self, session: Any, value: Any) -> None:
        self._broadcast = session.sparkContext.broadcast(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return attrgetter("value"), (self._broadcast,)

    def destroy(self) -> None:
        """Remove the value from the driver and the executors."""
        self._broadcast.destroy()


def run_on_driver(program: Program, on_event: OnEvent | None = None) -> dict[str, Any]:
    """Run with `num_processes` processes that TorchDistributor starts on the driver's machine.

    Uses the active Spark session, or starts one.

    Raises:
        MissingDependency: pyspark is not installed.
        TrainingError: a rank failed; the message names it and holds the end of its traceback.
    """
    options = options_of(program.config)
    with variables_set({_STORAGE_OPTIONS_VARIABLE: options}):  # which the child processes inherit
        return _run(program, on_event, is_local=True)


def run_on_executors(program: Program, on_event: OnEvent | None = None) -> dict[str, Any]:
    """Run with `num_processes` processes, one per task on Spark's executors; else like `run_on_driver`."""
    options = options_of(program.config)
    carried = {**store_variables(os.environ), _STORAGE_OPTIONS_VARIABLE: options}
    return _run(program, on_event, CarriedEnvironment(carried), is_local=False)


def free_slots() -> int | None:
    """Return how many tasks Spark's executors can run at once, as barrier stages count them; None if it is unknown."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or not hasattr(session, "_jsparkSession"):
        return None
    context = session.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def options_of(config: RunConfig) -> str:
    """Return the storage options of a run by field of its configuration, as JSON; secret."""
    whole = config.to_json()
    return json.dumps({name: whole[name] for name in ("storage_options", "run_storage_options")})


def _run(program: Program, on_event: OnEvent | None, *carried: CarriedEnvironment, is_local: bool) -> dict[str, Any]:
    config = program.config
    session = _session(config)
    use_driver_python(session)
    gpu_setting = "spark.driver.resource.gpu.amount" if is_local else "spark.task.resource.gpu.amount"
    # Without this setting, local children see the GPUs of this machine; tasks on executors see none.
    use_gpu = config.device != "cpu" and session.conf.get(gpu_setting, None) is not None
    from pyspark.ml.torch.distributor import TorchDistributor

    distributor = TorchDistributor(num_processes=config.num_processes, local_mode=is_local, use_gpu=use_gpu)
    remove_failures(_place(config))
    attempt = secrets.token_hex(8)
    # The configuration of one rank that was started by something else, without secrets.
    alone: dict[str, Any] = {"launcher": "inline", "num_processes": 1, "max_restarts": 0, "min_processes": None}
    bare = replace(config, **alone, storage_options={}, run_storage_options=None)
    task = pickled(replace(program, config=bare))
    work: Any = (bare, task, program.source_of, read_source(program.source_of), attempt)
    if carried and not is_connect(session):
        work = Broadcasted(session, work)
    random_state = random.getstate()  # TorchDistributor seeds Python's generator where it chooses GPUs
    with following_run(config, on_event):
        try:
            result: dict[str, Any] = distributor.run(_run_rank, work, *carried)
        except SmaltiError:
            raise
        except Exception as error:
            raise _as_error(config, error, attempt) from error
        finally:
            random.setstate(random_state)
    return result


def _run_rank(
    work: tuple[RunConfig, str, Sequence[str], dict[str, str], str],
    carried: CarriedEnvironment | None = None,  # noqa: ARG001 - unpickling it sets the environment
) -> dict[str, Any]:
    """Run as one rank; return the result, which is equal on all ranks because Spark keeps only one."""
    # The parent, torchrun's agent, is killed half a second after it was asked to end its ranks.
    end_with_parent(os.getppid())
    bare, task, source_of, source, attempt = work
    config = replace(bare, **json.loads(os.environ.get(_STORAGE_OPTIONS_VARIABLE, "{}")))
    with failures_recorded(_place(config), attempt), importable(source_of, source):
        program: Program = unpickled(task)
        return replace(program, config=config).run()


def _session(config: RunConfig) -> Any:
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependency(
            f"launcher '{config.launcher}' needs pyspark: pip install 'smalti[spark]', or use launcher='processes'.",
            package="pyspark",
        ) from error
    try:
        return SparkSession.getActiveSession() or SparkSession.builder.appName("smalti-train").getOrCreate()
    except PySparkException as error:
        raise TrainingError(
            f"launcher '{config.launcher}' found no Spark session and could not start one: {error} Start a "
            "session first, or install Java 17 or later; launcher='processes' needs neither."
        ) from error


def _as_error(config: RunConfig, error: Exception, attempt: str) -> TrainingError:
    is_cancelled = _CANCELLED.search(str(error)) is not None
    failure = None if is_cancelled else read_failure(_place(config), config.num_processes, attempt)
    if failure is None:
        what = f"the run was stopped: Spark's job was cancelled ({config.launcher})"
        if not is_cancelled:
            what = (
                f"the {config.num_processes} ranks could not be run by TorchDistributor ({config.launcher}), or do not "
                f"see {config.run_dir}"
            )
        kind = STOPPED if is_cancelled else LOST
        return TrainingError(f"{what}: {_last_lines(str(error))}", rank=None, kind=kind, output=str(error))
    return TrainingError(
        f"rank {failure['rank']} of {config.num_processes} failed under TorchDistributor ({config.launcher}): "
        f"{failure['reason']}\n{_last_lines(failure['trace'])}",
        rank=failure["rank"],
        output=failure["trace"],
        kind=failure["kind"],
        **({"is_transient": True} if failure.get("is_transient") else {}),
    )


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _place(config: RunConfig) -> Store:
    return open_store(config.local_run_dir or config.run_dir, config.run_dir_options)


@contextlib.contextmanager
def failures_recorded(run_dir: Place, attempt: str) -> Iterator[None]:
    """Record an exception of the body in the run's folder, as one of an attempt, and let it propagate."""
    rank = detect_world().rank
    try:
        yield
    except Exception as error:
        record = {
            "rank": rank,
            "time": time.time(),
            "reason": f"{type(error).__name__}: {error}",
            "trace": "".join(traceback.format_exception(error))[-_TRACE_CHARS:],
            "is_transient": is_transient(error),
            "kind": kind_of(error),
        }
        with contextlib.suppress(StoreError):  # best effort: the error itself matters more than its record
            open_store(run_dir).put(_record_key(attempt, rank), json.dumps(record).encode())
        raise


def remove_failures(run_dir: Place) -> None:
    """Remove the records of earlier attempts."""
    store = open_store(run_dir)
    for info in list(store.list(_FAILURES)):
        delete_own(store, info.key)


def _record_key(attempt: str, rank: int) -> str:
    return f"{_FAILURES}/{attempt}/rank-{rank:05d}.json"


def read_failure(run_dir: Place, num_ranks: int, attempt: str) -> dict[str, Any] | None:
    """Return the record of the first failure of an attempt, or None if no rank left one.

    It has `rank`, `reason` (the error in one line), `trace` (the end of the traceback), `kind` (that of `kind_of`, or
    `killed`) and, if it is a fault of a store that is likely to pass, `is_transient`.

    A rank that only lost the connection to another one is not the cause if some rank failed for another reason, or left
    no record: a rank without a record was killed. Ranks of earlier attempts may still be ending; theirs are ignored.
    """
    store, records = open_store(run_dir), list[dict[str, Any]]()
    for rank in range(num_ranks):
        with contextlib.suppress(StoreError, ValueError):  # not there, or the rank was killed while it wrote the file
            record = json.loads(store.get(_record_key(attempt, rank)))
            if isinstance(record, dict) and all(type(record.get(name)) is kind for name, kind in _FIELDS.items()):
                records.append(record)
    records.sort(key=lambda record: record["time"])
    own = [record for record in records if record["kind"] != LOST]
    silent = sorted(set(range(num_ranks)) - {record["rank"] for record in records})
    if records and silent and not own:
        reason = "it was killed or hung: the other ranks lost the connection to it"
        return {"rank": silent[0], "reason": reason, "trace": "", "kind": "killed"}
    return next(iter(own or records), None)


def read_source(named: Sequence[str]) -> dict[str, str]:
    """Return the Python files that importing some `module:name` needs, by paths below the folders they are in.

    These are the module, or the whole of its top-level package, and all modules that this process has loaded from the
    same folder. There are none of a text that is not of the form `module:name`, of a part of an installed package, and
    of what cannot be imported here: training processes need their own copy of those. If two files have one path, that
    of the name that is given first is returned.
    """
    source: dict[str, str] = {}
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in _INSTALLATION_PATHS}
    for name, colon, _ in (text.partition(":") for text in named):
        root = None
        # Training processes may be able to import what this one cannot; otherwise they raise.
        with contextlib.suppress(ImportError):
            root = _root_of(importlib.import_module(name)) if colon else None
        if root is None or root in installed or root.name in {"site-packages", "dist-packages"}:
            continue
        package = root / name.partition(".")[0]
        files = {path for path in package.rglob("*.py") if path.is_file()}
        values: list[Any] = list(sys.modules.values())  # may contain None and other objects that are not modules
        loaded = (value for value in values if isinstance(value, ModuleType) and _root_of(value) == root)
        files |= {Path(vars(module)["__file__"]) for module in loaded}
        for path in sorted(files):
            source.setdefault(path.relative_to(root).as_posix(), read_regular_text(path))
    return source


@contextlib.contextmanager
def importable(named: Sequence[str], source: Mapping[str, str]) -> Iterator[None]:
    """Make some `module:name` importable from source files in the body, unless this process can import all."""
    if not source or all(_is_importable(each.partition(":")[0]) for each in named):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="smalti-model-") as folder:
        for path, text in source.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(folder)


def _root_of(module: ModuleType) -> Path | None:
    """Return the folder that a module was imported from; None if it was not imported from a Python file."""
    file = vars(module).get("__file__")
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    depth = module.__name__.count(".") + (path.name == "__init__.py")
    return path.parents[depth] if depth < len(path.parents) else None


def _is_importable(name: str) -> bool:
    if name == "__main__":  # there is one in every process, and here it is another script
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
