"""Cases of advice that is followed: what a message refuses, or warns about, succeeds then.

Each case is a generator. Its first function is refused with the advice; the others follow the advice, and succeed.
"""

import contextlib
import io
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import smalti
from smalti import MDSWriter
from smalti.cli import main
from tests.shard_sets import write_set


class Cases(list):
    """The cases of a module: parameters of its test."""

    def add(self, area, advice):
        """Return the decorator of a case."""

        def keep(steps):
            self.append(pytest.param(advice, steps, id=f"{area}-{steps.__name__}"))
            return steps

        return keep


def check_followed(at, advice, steps):
    refused, *followed = steps(at)
    with pytest.raises((Exception, Warning)) as caught:
        refused()
    assert advice in str(caught.value)
    assert followed
    for step in followed:
        step()


def command(*words):
    """Run `smalti` with these words; raise what it prints if it fails."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = main([str(word) for word in words])
    # The message of an error is broken into lines where the terminal ends.
    assert status == 0, " ".join(said.getvalue().split())


def put(folder, count=20, **options):
    """Write a set with splits in folders or without; return its address."""
    return str(write_set(folder, count, **options))


def split_set(at):
    table = pa.table({"id": [1, 2, 3], "part": ["train", "train", "test"]})
    pq.write_table(table, at / "rows.parquet")
    smalti.convert(str(at / "rows.parquet"), str(at / "set"), partition_by="part", processes=1)
    return str(at / "set")


def plain_set(at):
    """Write a set that has no versions."""
    put(at / "set")
    shutil.rmtree(at / "set" / "_versions")
    path = at / "set" / "index.json"
    path.write_text(json.dumps({name: json.loads(path.read_text())[name] for name in ("version", "shards")}))
    return str(at / "set")


def unsafe_set(at):
    with MDSWriter(out=str(at / "set"), columns={"id": "pkl"}, allow_unsafe_types=True) as writer:
        writer.write({"id": 1})
    return str(at / "set")


def read(dataset):
    """Return the samples that a dataset or loader gives."""
    with contextlib.closing(dataset) if hasattr(dataset, "close") else contextlib.nullcontext():
        return list(dataset)


def rows(at, table=None):
    pq.write_table(table or pa.table({"id": [1, 2, None]}), at / "rows.parquet")
    return str(at / "rows.parquet")


def convert(source, to, **options):
    return smalti.convert(source, to, processes=1, **options)
