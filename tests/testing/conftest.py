"""A fault store for each test, without faults until they are planted."""

import os

import pytest

from tests.faultstore import FaultStore


@pytest.fixture
def faults():
    with FaultStore(seed=1) as server:
        yield server


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No credentials and endpoints of this machine."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "S3_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
