"""Probes of stores: their findings, and that they leave nothing behind."""

import os
import threading
import time

import pytest

from smalti.errors import StoreAuthError
from smalti.storage import open_store
from smalti.storage.probe import probe_store
from tests.stores import MemoryStore

ALL = ["open", "create", "read", "create only once", "replace", "list", "clock", "delete"]


class Faulty(MemoryStore):
    """A store that refuses or mistreats one operation."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def list(self, prefix=""):
        if self.fault == "list":
            raise StoreAuthError("no right to list: grant it")
        return super().list(prefix)

    def delete(self, key):
        if self.fault == "delete":
            raise StoreAuthError("no right to delete: grant it")
        super().delete(key)

    def put_if_absent(self, key, data):
        if self.fault == "hangs":
            threading.Event().wait(300)
        if self.fault == "condition":
            self.put(key, data)
        else:
            super().put_if_absent(key, data)


def test_a_folder_passes_every_step_and_keeps_no_object(tmp_path):
    probe = probe_store(tmp_path / "root")
    assert probe.problems == ()
    assert [step.name for step in probe.steps] == ALL
    assert abs(probe.clock_skew) < 60
    assert list(open_store(tmp_path / "root").list()) == []


def test_a_bucket_passes_every_step_and_keeps_no_object(s3_server, s3_bucket):
    options = {"endpoint_url": s3_server}
    probe = probe_store(f"s3://{s3_bucket}/root", options)
    assert probe.problems == ()
    assert [step.name for step in probe.steps] == ALL
    assert list(open_store(f"s3://{s3_bucket}", options).list()) == []


def test_a_bucket_that_is_not_there_is_named(s3_server, s3_bucket):
    problem = probe_store("s3://no-such-bucket-at-all/root", {"endpoint_url": s3_server}).problems[0]
    assert problem.startswith("create: ")
    assert "s3://no-such-bucket-at-all/root" in problem


@pytest.mark.parametrize("step", ["list", "delete"])
def test_a_missing_right_is_the_one_problem(step):
    assert probe_store(Faulty(step)).problems == (f"{step}: no right to {step}: grant it",)


def test_a_store_that_ignores_conditions_is_found_out():
    (problem,) = probe_store(Faulty("condition")).problems
    assert problem.startswith("create only once: ")
    assert "If-None-Match" in problem


def test_a_store_that_hangs_is_given_up_at_the_deadline():
    begin = time.monotonic()
    assert "create: no answer within" in probe_store(Faulty("hangs"), seconds=0.2).problems[0]
    assert time.monotonic() - begin < 60


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_named(tmp_path):
    tmp_path.chmod(0o500)
    assert str(tmp_path) in probe_store(tmp_path).problems[0]


def test_a_secret_in_an_address_is_not_repeated():
    probe = probe_store("s3://user:canary@bucket/x")
    assert probe.problems
    assert "canary" not in f"{probe}"
