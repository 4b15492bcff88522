"""Credentials are carried in memory: unpickling sets them, and the unpickled object is empty."""

import os
import pickle

import pytest

from smalti.storage.schemes import store_variables
from smalti.torch.train.launchers.spark import CarriedEnvironment

pytestmark = pytest.mark.torch


def test_the_variables_of_all_stores_are_found_and_no_others(monkeypatch):
    names = {
        "DATABRICKS_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GCS_KEY",
        "GCS_SECRET",
        "AZURE_CLIENT_ID",
        "S3_ENDPOINT_URL",
        "HF_TOKEN",
        "OCI_CLI_REGION",
        "COMPOSER_SFTP_KEY_FILE",
    }
    for name in names:
        monkeypatch.setenv(name, "v")
    monkeypatch.setenv("HOME_MADE_SECRET", "v")
    found = store_variables(os.environ)
    assert names <= set(found)
    assert "HOME_MADE_SECRET" not in found


def test_unpickling_sets_the_environment_and_empties_the_object(monkeypatch):
    monkeypatch.delenv("DATABRICKS_TOKEN", raising=False)
    sent = pickle.dumps(CarriedEnvironment({"DATABRICKS_TOKEN": "canary-9753"}))
    arrived = pickle.loads(sent)
    monkeypatch.setenv("DATABRICKS_TOKEN", os.environ["DATABRICKS_TOKEN"])
    assert os.environ["DATABRICKS_TOKEN"] == "canary-9753"
    assert b"canary-9753" not in pickle.dumps(arrived)


def test_the_repr_shows_names_only():
    assert repr(CarriedEnvironment({"AWS_KEY": "canary"})) == "CarriedEnvironment(AWS_KEY)"
