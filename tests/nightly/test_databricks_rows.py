"""Partitioned rows with the shipped tokenizer as a job of the Databricks stand-in, beside a local run."""

import dagster as dg
import numpy as np

from smalti.catalog import load_manifest
from smalti.catalog.verify import open_checked
from smalti.storage import open_store
from smalti_dagster.resources.storage import LocalStorage
from tests.code_location.databricks.there import NOTES, compute, content
from tests.code_location.databricks.workspace import Workspace
from tests.code_location.declared import define

BYTES = 3494
"""Of the documents: per row 8 of "Straße ", a number, a space, and 5 to 11 times the 6 of "köln "; 60 rows."""


def tokens_in(place):
    """How many tokens are no ends of documents."""
    store, found = open_store(place / "shards"), 0
    for info in load_manifest(store).shards:
        with open_checked(store, info) as shard:
            found += int(np.count_nonzero(shard.batch(np.arange(len(shard)))["tokens"]))
    return found


def test_partitions_of_rows_and_functions_of_the_user_give_the_shards_of_a_local_run(tmp_path):
    tags = {"dagster/asset_partition_range_start": "mon", "dagster/asset_partition_range_end": "tue"}
    with Workspace(tmp_path / "workspace", {"keys/AWS_SECRET_ACCESS_KEY": "secret-0123456789"}) as workspace:
        for name, spark in (("local", {}), ("remote", {"spark": compute(workspace)})):
            with dg.DagsterInstance.ephemeral() as instance:
                instance.add_dynamic_partitions("notes_partitions", ["mon", "tue"])
                defs = define(NOTES, storage=LocalStorage(root=str(tmp_path / name)), **spark)
                job = defs.resolve_job_def("notes_reshard_job")
                done = job.execute_in_process(instance=instance, tags=tags)
                made = [each for each in done.get_asset_materialization_events() if each.asset_key.path[-1] == "shards"]
                assert {each.partition for each in made} == {"mon", "tue"}
        assert len(workspace.submitted) == 1
    assert tokens_in(tmp_path / "local" / "notes") == BYTES
    assert content(tmp_path / "remote" / "notes") == content(tmp_path / "local" / "notes")
