"""Parquet on an S3 server, with faults on order: rows come whole, or the reader says what is wrong with which file."""

import random

import pyarrow.fs
import pytest

from smalti.compat.petastorm import make_batch_reader
from smalti.errors import ChecksumMismatch, FormatError, StoreError
from tests.compat.parquet_files import flat, ids_of, url, write_rows
from tests.faultstore import FaultStore, Toxic

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("error")]


@pytest.fixture
def faults(tmp_path, monkeypatch):
    """A server with 3 files of 4 row groups; all columns of a row group take 300 kB."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    where = write_rows(tmp_path / "set", data=lambda row: random.Random(row).randbytes(30_000), other=float)
    with FaultStore() as server:
        server.put_folder(where, "set/")
        yield server


def reader_of(faults, **options):
    told = {"seed": 1, "batch_size": 16, "storage_options": faults.options | {"request_attempts": 3}}
    return make_batch_reader(f"s3://{faults.bucket}/set", **told | options)


def test_an_epoch_takes_one_request_for_a_row_groups_columns_and_one_for_its_footer(faults):
    with reader_of(faults) as reader:
        faults.forget()
        assert sorted(flat(ids_of(reader))) == list(range(120))
    assert len(faults.log("GET")) == 2 * 12


def test_columns_that_lie_apart_are_read_without_what_is_between(faults):
    with reader_of(faults, schema_fields=["id", "other"], shuffle_row_groups=False) as reader:
        faults.forget()
        assert flat(ids_of(reader)) == list(range(120))
    assert len(faults.log("GET")) == 3 * 12  # two columns, as what lies between them is larger than a gap, and a footer


@pytest.mark.parametrize(
    "toxic",
    [
        Toxic("reset_peer", method="GET", after=1000, probability=0.2),
        Toxic("http", method="GET", status=503, code="SlowDown", probability=0.2),
        Toxic("truncate", method="GET", probability=0.2),
    ],
    ids=["resets", "busy", "cut off"],
)
def test_faults_that_pass_are_passed_over(faults, toxic):
    with reader_of(faults) as reader:
        faults.plant(toxic)
        assert sorted(flat(ids_of(reader))) == list(range(120))


def test_bytes_that_changed_on_the_way_are_never_rows(faults):
    with reader_of(faults) as reader:
        faults.plant(Toxic("corrupt", method="GET", key="*part-00001*", bits=1))
        with pytest.raises((FormatError, StoreError), match="part-00001"):
            list(reader)


def test_an_object_that_is_replaced_while_it_is_read_is_told(faults):
    with reader_of(faults) as reader:
        faults.put("set/part-00001.parquet", faults.get("set/part-00002.parquet"))
        with pytest.raises(ChecksumMismatch, match=r"part-00001.*changed since"):
            list(reader)


def test_a_server_that_is_gone_ends_the_epoch_with_an_error(faults):
    with reader_of(faults, storage_options=faults.options | {"request_attempts": 1, "request_timeout": 60}) as reader:
        faults.plant(Toxic("http", method="GET", status=403, code="AccessDenied"))
        with pytest.raises(StoreError, match=r"part-0000"):
            list(reader)


def test_a_file_system_of_pyarrows_is_read_as_well(tmp_path):
    where = write_rows(tmp_path / "set")
    with make_batch_reader(url(where), filesystem=pyarrow.fs.LocalFileSystem(), seed=1) as reader:
        rows = flat(ids_of(reader))
    with make_batch_reader(url(where), seed=1) as reader:
        assert flat(ids_of(reader)) == rows
    named = [f"file://{where}/part-00000.parquet", f"file://{where}/no.parquet"]
    with pytest.raises(StoreError, match=r"no\.parquet"):
        make_batch_reader(named, filesystem=pyarrow.fs.LocalFileSystem())
