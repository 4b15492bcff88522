"""The fault store that section E reads from: a process of its own, as the readers fork."""

import os

import pytest

from tests.cache.conftest import fill, make_cache
from tests.faultstore import FaultStore

__all__ = ["fill", "make_cache"]  # section F reads real shards through the cache alone


@pytest.fixture(scope="session")
def fault_process():
    with FaultStore(own_process=True) as server:
        yield server


@pytest.fixture
def faults(fault_process, monkeypatch):
    """Without faults and objects; its address and keys are in the environment, and no others."""
    fault_process.reset()
    for name in list(os.environ):
        if name.startswith(("AWS_", "S3_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in fault_process.environment.items():
        monkeypatch.setenv(name, value)
    return fault_process
