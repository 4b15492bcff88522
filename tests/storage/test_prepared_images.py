"""Prepared images on object stores: made by Spark, updated, read back, and cleaned up."""

import hashlib
import time

import pytest

from assets.flowers import draw_flower
from smalti.errors import StoreNotFound
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions
from smalti.spark.prepared.rows import first_rows, read_rows
from smalti.spark.prepared.table import find_table
from smalti.spark.prepared.update import show_again, update_prepared
from smalti.spark.prepared.vacuum import vacuum_prepared
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
def on_gcs(gcs_url, gcs_bucket):
    return f"gs://{gcs_bucket}/data/prepared", {"endpoint_url": gcs_url, "token": "anon"}


@pytest.mark.parametrize("place", ["on_s3", "on_azure", "on_gcs"])
def test_tables_are_made_updated_read_and_cleaned_up_on_an_object_store(place, request, spark, tmp_path):
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

    found = find_table(path, second.table.name, storage_options=options)
    assert found.digest == second.table.digest
    rows = {row["path"]: row for row in read_rows(spark, found, storage_options=options).collect()}
    assert sorted(rows) == [*(f"daisy/{n}.jpg" for n in (1, 2, 3)), *(f"roses/{n}.jpg" for n in (0, 1, 2, 3, 7))]
    digests = dict(zip(found.good["path"].to_pylist(), found.good["digest"].to_pylist(), strict=True))
    assert digests == {name: hashlib.sha256(row["image"]).hexdigest() for name, row in rows.items()}
    assert len(first_rows(found, 3, storage_options=options)) == 3
    again = show_again(list_images(str(photos)), path, name=found.name, options=OPTIONS, storage_options=options)
    assert again.digest == found.digest

    store = open_store(path, options)
    folder = min(found.parts).split("/")[0]
    store.put(f"{folder}/part-00000-0123abcd.parquet", b"of an attempt that lost")
    assert vacuum_prepared(path, dry_run=False, storage_options=options).removed == ()
    time.sleep(2.5)  # some stores have times of whole seconds
    report = vacuum_prepared(path, older_than=1, unsafe_ttl=True, dry_run=False, storage_options=options)
    assert [each.key for each in report.removed] == [f"{folder}/part-00000-0123abcd.parquet"]
    assert read_rows(spark, found, storage_options=options).count() == 8


def test_a_missing_table_is_none_and_a_missing_part_is_named(on_s3, spark, tmp_path):
    path, options = on_s3
    assert find_table(path, "nothing", storage_options=options) is None
    draw(tmp_path / "photos", "daisy", 0)
    table = update(spark, tmp_path / "photos", path, options).table
    [part] = table.parts
    open_store(path, options).delete(part)
    with pytest.raises(StoreNotFound, match=part):
        first_rows(table, 1, storage_options=options)


def draw(photos, kind, number, *, picture=None):
    put(
        photos / kind / f"{number}.jpg", draw_flower(kind, number=number if picture is None else picture, size=(40, 32))
    )


def update(spark, photos, path, options):
    folder = list_images(str(photos))
    return update_prepared(spark, folder, path, name=folder.digest[:16], options=OPTIONS, storage_options=options)
