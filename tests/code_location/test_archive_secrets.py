"""The signature of an archive's address: in no event, compute log, run or file that Dagster or the assets write."""

import logging
from pathlib import Path

import dagster as dg
import pytest

from assets.drawing import draw_flower
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.stages.data import build_data
from tests.code_location.declared import FLOWERS
from tests.sources.archives import RawServer, reply, tar_bytes, whole

CANARY = "CANARYcanary"


def photos() -> bytes:
    names = [f"photos/{kind}/{number}.jpg" for kind in ("daisy", "roses") for number in range(2)]
    return tar_bytes({name: draw_flower("daisy", number=at, size=(40, 32)) for at, name in enumerate(names)})


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_signed_source_is_materialised_or_refused_without_showing_its_signature(
    tmp_path: Path,
    storage: StorageResource,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_refused: bool,
) -> None:
    """The Launchpad keeps what is typed there: the address is named by a variable."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "home").mkdir()
    refusal = reply(b"", "Content-Length: 0", status=f"403 sig={CANARY}")
    with (
        RawServer({"/x.tgz": refusal if is_refused else whole(photos())}) as server,
        dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance,
    ):
        monkeypatch.setenv("IMAGES_URL", f"{server.url}/x.tgz?whatever={CANARY}&sv=2024&sig={CANARY}")
        done = dg.materialize(
            [build_data(FLOWERS)],
            selection=[FLOWERS.key("raw")],
            instance=instance,
            resources={"smalti_storage": storage, "smalti_spark": SparkResource()},
            run_config={"ops": {"flowers__data": {"config": {"raw": {"source": {"env": "IMAGES_URL"}}}}}},
            raise_on_error=False,
        )
        assert done.success is not is_refused
        assert any(CANARY in path for path in server.seen)
        events = instance.all_logs(done.run_id)
        if is_refused:
            assert f"{server.url}/x.tgz?***" in repr(events)
        else:
            event = latest(instance, FLOWERS.key("raw"))
            assert event is not None
            assert facts_of(event)["source"].startswith(f"{server.url}/x.tgz?*** (")
        assert CANARY not in repr(events)
    assert CANARY not in caplog.text
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in written)
    assert [path for path in written if CANARY.encode() in path.read_bytes()] == []
    assert not is_refused or not list(tmp_path.rglob("*.jpg"))


def test_this_test_would_see_a_secret_in_a_run(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        @dg.op
        def shows() -> None:
            raise ValueError(CANARY)

        @dg.job
        def job() -> None:
            shows()

        job.execute_in_process(instance=instance, raise_on_error=False)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(CANARY.encode() in data for data in written)
