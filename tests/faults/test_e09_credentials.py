"""E9: expired credentials are reloaded once, then an error; never a fallback to anonymous access."""

import pytest

from smalti.errors import StoreAuthError
from tests.faults.ways_of_reading import (
    ALONE_AND_THREADS,
    FEW_WAYS,
    SHARD,
    assert_every_consumer_fails,
    assert_exact,
    assert_fails,
    crossed,
    open_set,
    serve,
)
from tests.faultstore import Toxic

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("way", "status", "code"),
    crossed(FEW_WAYS, [(403, "AccessDenied"), (403, "ExpiredToken"), (400, "ExpiredToken")]),
)
@pytest.mark.slow
def test_e9_refused_credentials_are_an_error_on_every_consumer_and_never_anonymous(faults, tmp_path, way, status, code):
    serve(faults).plant(Toxic("http", status=status, code=code, key="*/shard.*", nth=4))
    dataset = open_set(tmp_path)
    assert_fails(dataset, way, StoreAuthError, r"shard.*refused.*AWS_ACCESS_KEY_ID")
    faults.heal()
    faults.plant(Toxic("http", status=status, code=code, key=f"*{SHARD}*"))
    assert_every_consumer_fails(open_set(tmp_path / "again"), StoreAuthError, 30)
    assert {entry.access for entry in faults.log()} == {"AKIDFAULTSTORE"}, "never anonymous"


def write_keys(path, access):
    path.write_text(f"[default]\naws_access_key_id = {access}\naws_secret_access_key = SECRET\n")


@pytest.mark.parametrize("way", ALONE_AND_THREADS)
def test_e9_credentials_that_expire_in_an_epoch_are_reloaded_once(faults, tmp_path, way, monkeypatch):
    """A file that another program refreshes, as SSO and most platforms do."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    write_keys(tmp_path / "keys", "AKIDOLD")
    serve(faults)
    dataset = open_set(tmp_path)
    assert len(dataset) == 60
    write_keys(tmp_path / "keys", "AKIDNEW")
    faults.plant(Toxic("http", status=403, code="ExpiredToken", access="AKIDOLD"))
    assert_exact(dataset, way)
    assert {entry.access for entry in faults.log()} == {"AKIDOLD", "AKIDNEW"}


@pytest.mark.slow
def test_e9_refused_keys_are_tried_again_only_once(faults, tmp_path):
    serve(faults)
    dataset = open_set(tmp_path)
    assert len(dataset) == 60
    faults.plant(Toxic("http", status=403, code="ExpiredToken"))
    faults.forget()
    with pytest.raises(StoreAuthError):
        dataset[0]
    assert len(faults.log("GET")) == 2
