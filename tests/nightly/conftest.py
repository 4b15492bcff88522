"""Servers from Debian, for `make test-nightly`; nothing here is collected by any other run."""

import os
import secrets

import pytest

from tests.nightly.ceph import ceph
from tests.nightly.openssh import openssh
from tests.storage.conftest import certificate, clean_environment

__all__ = ["certificate", "clean_environment"]

collect_ignore_glob = [] if os.environ.get("SMALTI_NIGHTLY") == "1" else ["test_*.py"]


@pytest.fixture(scope="session")
def gateway(certificate, tmp_path_factory):
    """Ceph's S3."""
    with ceph(tmp_path_factory.mktemp("ceph"), certificate) as server:
        yield server


@pytest.fixture
def bucket(gateway, clean_environment):
    """A new bucket; the environment has its keys."""
    clean_environment.setenv("AWS_ACCESS_KEY_ID", gateway.key)
    clean_environment.setenv("AWS_SECRET_ACCESS_KEY", gateway.secret)
    return gateway.make_bucket(f"b-{secrets.token_hex(6)}")


@pytest.fixture(scope="session")
def sshd():
    """OpenSSH's SFTP."""
    with openssh() as server:
        yield server
