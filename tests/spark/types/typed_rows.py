"""Arrow batches as Spark sends them, stored and read again, without Spark."""

import json
import pickle
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from smalti.format import Schema, Shard, ShardBuilder, ShardOptions
from smalti.format.logical import parse_logical
from smalti.spark.writing.dataframe import plan_table
from tests.hostile.files import scratch_files


@dataclass(frozen=True)
class Stored:
    """One shard of these rows, read in every way."""

    plan: object
    samples: list
    """Samples of Smalti's reader, one by one."""
    batch: dict
    """A batch of Smalti's reader, by column."""
    raw: list
    """Stored values, one by one, as other readers return them."""


def stored(schema, arrays, columns=None, nulls="reject"):
    """Store the rows by a plan that was pickled and with logical types that were JSON, and read them again."""
    plan = pickle.loads(pickle.dumps(plan_table(schema, columns, nulls)))
    builder = ShardBuilder(Schema.from_columns(plan.encodings), ShardOptions(hashes=(), size_limit=None))
    builder.add_batch(plan.prepare(pa.RecordBatch.from_arrays(arrays, schema.fieldNames())))
    (filled,) = builder.finish()
    built = filled.seal()
    types = parse_logical(json.loads(json.dumps(plan.logical, sort_keys=True)), plan.encodings)
    with scratch_files([bytes(built.payloads[0])]) as (path,):
        shard = Shard.open(path, built.info)
        raw, samples = ([shard[number] for number in range(len(shard))] for _ in range(2))
        batch = shard.batch(np.arange(len(shard)))
        shard.close()
    if types is not None:
        samples, batch = [types.sample(sample) for sample in samples], types.batch(batch)
    return Stored(plan, samples, batch, raw)
