"""A code location whose steps stop where a test wants them: in the phase that the file `hold` below the root names.

A phase reports that it is reached by a file of its name in `reached`. The data set `held` stops while its source is
read (raw), previewed (prepared) and written (shards); `squares` has a training that never ends; `waiting` needs
neither Spark nor torch.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from pipelines.definitions import deployment
from smalti_dagster import build_definitions
from smalti_dagster.declaration import Declaration, Prepare, Shards, Source, Train
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.stage import stage_op
from tests.code_location.declared import DRAWN

ROWS = 2_000
SECONDS = 300.0
_HERE = "tests.code_location.held_sets"

HELD = Declaration(
    name="held",
    source=Source(dataframe=f"{_HERE}:rows"),
    prepare=Prepare(function=f"{_HERE}:double"),
    shards=Shards(size_limit="2kb"),
)
SQUARES = Declaration(
    name="squares",
    source=DRAWN,
    train=Train(
        architecture="tests.torch.train.tiny_models:slow",
        epochs=100_000,
        batch_size=8,
        launcher="processes",
        num_processes=1,
    ),
)


def hold(phase: str, meanwhile: Callable[[], None] = lambda: None, *, pause: float = 0.05) -> None:
    """Report that a phase is reached, and come back when the file `hold` names another one."""
    root = Path(os.environ["SMALTI_ROOT"])
    (root / "reached").mkdir(parents=True, exist_ok=True)
    (root / "reached" / phase).write_text(str(os.getpid()))
    deadline = time.monotonic() + SECONDS
    while (root / "hold").read_text() == phase and time.monotonic() < deadline:
        meanwhile()
        time.sleep(pause)


def rows(spark: Any) -> Any:
    """Return numbers, after a job of Spark, so that Java runs; others in each run, so that no stage is skipped."""
    spark.range(10).count()
    hold("raw")
    return spark.range(0, ROWS, numPartitions=2).selectExpr("id", f"concat('row ', id, ' of {os.getpid()}') AS text")


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch as it is; the preview calls it in the step's process, writing in a Python worker of Spark."""
    main = sys.modules["__main__"].__spec__
    hold("shards" if main is not None and main.name.startswith("pyspark") else "prepared")
    return batch


class Waiting(dg.Config):
    """Configuration of `waiting`."""

    line: str = "still here"


@stage_op("waiting", [dg.AssetSpec("waiting")], [], config=Waiting, pool="spark")
def waiting(context: dg.AssetExecutionContext, config: Waiting, storage: StorageResource) -> Iterator[Any]:
    """Write several lines in the time between the end of a run and the death of its step."""
    hold("waiting", lambda: context.log.info(config.line), pause=0.3)
    yield dg.MaterializeResult(asset_key="waiting")


defs = dg.Definitions.merge(
    build_definitions(HELD),
    build_definitions(SQUARES),
    dg.Definitions(assets=[waiting], jobs=[dg.define_asset_job("waiting_job", selection=[waiting])]),
    deployment(),
)
