"""Prepared images on object stores: made by Spark, updated, read back, and cleaned up."""

import hashlib
import time

import pytest

from assets.drawing import draw_flower
from smalti.catalog import vacuum, verify
from smalti.errors import StoreNotFound
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions
from smalti.spark.prepared.rows import images_of_classes, read_prepared
from smalti.spark.prepared.table import load_prepared
from smalti.spark.prepared.update import find_prepared, update_prepared
from smalti.storage import open_store
from tests.spark.own_session import own_session
from tests.spark.photos import put
from tests.storage.conftest import ACCESS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    # aiohttp warns of the large bodies that Azure's and Google's clients send; the warning is off by default.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]

OPTIONS = PrepareOptions(size=16, validation_fraction=0.25, num_partitions=2)


@pytest.fixture(scope="module")
def spark():
    with own_session() as session:
        yield session


@pytest.fixture
def on_s3(s3_server, s3_bucket):
    options = {"endpoint_url": s3_server, "key": ACCESS["AWS_ACCESS_KEY_ID"], "secret": ACCESS["AWS_SECRET_ACCESS_KEY"]}
    return f"s3://{s3_bucket}/data/prepared", options


@pytest.fixture
def on_azure(azurite_http, container):
    return f"az://{container}/data/prepared", {"connection_string": azurite_http.connection_string}


@pytest.fixture
def on_gcs(gcs_json):  # the emulator ignores conditional puts
    return f"gs://{gcs_json.bucket}/data/prepared", gcs_json.options


@pytest.mark.parametrize(
    "place",
    ["on_s3", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("on_azure", "on_gcs"))],  # test_contract.py
)
def test_versions_are_made_updated_read_and_cleaned_up_on_an_object_store(place, request, spark, tmp_path):
    path, options = request.getfixturevalue(place)
    photos = tmp_path / "photos"
    for kind in ("daisy", "roses"):
        for number in range(4):
            draw(photos, kind, number)
    first = update(spark, photos, path, options)
    assert (first.prepared, first.kept, first.table.rows) == (8, 0, 8)

    draw(photos, "daisy", 1, picture=50)
    draw(photos, "roses", 7)
    (photos / "daisy" / "0.jpg").unlink()
    second = update(spark, photos, path, options)
    assert (second.prepared, second.kept, second.removed) == (2, 6, 1)

    found = load_prepared(path, storage_options=options)
    assert found.digest == second.table.digest
    rows = {row["path"]: row for row in read_prepared(spark, path, storage_options=options).collect()}
    assert sorted(rows) == [*(f"daisy/{n}.jpg" for n in (1, 2, 3)), *(f"roses/{n}.jpg" for n in (0, 1, 2, 3, 7))]
    digests = dict(zip(found.good["path"].to_pylist(), found.good["digest"].to_pylist(), strict=True))
    assert digests == {name: hashlib.sha256(row["image"]).hexdigest() for name, row in rows.items()}
    assert {name: len(images) for name, images in images_of_classes(found, 2).items()} == {"daisy": 2, "roses": 2}
    again = find_prepared(list_images(str(photos)), path, options=OPTIONS, storage_options=options)
    assert again.table.manifest == found.manifest

    store = open_store(path, options)
    assert verify(store).ok
    folder = found.parts[0].raw.basename.split("/")[0]
    store.put(f"{folder}/part-00000-0123abcd.parquet", b"of an attempt that lost")
    assert vacuum(store, dry_run=False).removed == ()
    time.sleep(2.5)  # some stores have times of whole seconds
    report = vacuum(store, older_than=1, unsafe_ttl=True, dry_run=False)
    assert f"{folder}/part-00000-0123abcd.parquet" in [each.key for each in report.removed]
    assert read_prepared(spark, path, storage_options=options).count() == 8


def test_an_empty_place_and_a_missing_part_are_named(on_s3, spark, tmp_path):
    path, options = on_s3
    with pytest.raises(StoreNotFound, match="holds no prepared images: check the address"):
        load_prepared(path, storage_options=options)
    draw(tmp_path / "photos", "daisy", 0)
    table = update(spark, tmp_path / "photos", path, options).table
    [part] = table.parts
    open_store(path, options).delete(part.raw.basename)
    with pytest.raises(StoreNotFound, match=part.raw.basename):
        images_of_classes(table, 1)


def draw(photos, kind, number, *, picture=None):
    put(
        photos / kind / f"{number}.jpg", draw_flower(kind, number=number if picture is None else picture, size=(40, 32))
    )


def update(spark, photos, path, options):
    folder = list_images(str(photos))
    return update_prepared(spark, folder, path, options=OPTIONS, storage_options=options)
