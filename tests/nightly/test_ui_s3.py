"""A fresh copy of the project on S3, from the UI: a declared image set, and the tokens, made, extended and cut down.

It needs Chromium, playwright and moto, and takes about five minutes: seven runs, four of them with Spark.
"""

import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")

import boto3
import moto.server
from playwright.sync_api import expect

from assets.drawing import draw_flowers
from smalti.catalog import load_manifest
from smalti.catalog.opening import read_tag
from smalti.storage import open_store
from tools.screenshots import REPOSITORY, browser, deployment, find_chromium, materialize, metadata_row, wait_for_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SECONDS = 400.0
"""Longest wait for a run; the machine may be busy."""
KEYS = {"aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "SECRETTESTSECRET"}
NOT_COPIED = (".*", "data", "docs", "benchmarks", "tests", "build", "__pycache__")
SCANS = """
type: smalti_dagster.DataSet

attributes:
  name: scans
  source:
    manifest: s3://clinic/scans/labels.csv
    path_column: file
    label_column: finding
  prepare:
    image: {size: 64, on_bad_image: skip}
  checks: {max_bad_share: 0.02}
  owners: ["team:vision"]
"""


class Clinic:
    """The sources: images and a manifest of them in a bucket, and a text file."""

    def __init__(self, client, folder: Path) -> None:
        self._client, self._photos, self.text = client, folder / "photos", folder / "text.txt"
        draw_flowers(self._photos, per_class=20)

    def show(self, *, per_class: int) -> None:
        """Let the manifest name so many images of each of five classes."""
        classes = [folder for folder in sorted(self._photos.iterdir()) if folder.is_dir()]
        photos = [path for folder in classes for path in sorted(folder.iterdir())[:per_class]]
        for path in photos:
            self._client.upload_file(str(path), "clinic", f"scans/{path.name}")
        rows = "".join(f"{path.name},{path.parent.name}\n" for path in photos)
        self._client.put_object(Bucket="clinic", Key="scans/labels.csv", Body=f"file,finding\n{rows}".encode())

    def write(self, lines: int) -> None:
        """Let the text have so many lines of 127 letters: with its end, each makes a block of 128 tokens."""
        self.text.write_text("".join(f"{number:0127d}\n" for number in range(lines)))


@pytest.fixture(scope="module")
def server():
    """The address of an S3 server in this process."""
    made = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    yield f"http://{host}:{port}"
    made.stop()


@pytest.fixture(scope="module")
def clinic(server, tmp_path_factory):
    client = boto3.client("s3", endpoint_url=server, region_name="us-east-1", **KEYS)
    for bucket in ("clinic", "lake"):
        client.create_bucket(Bucket=bucket)
    return Clinic(client, tmp_path_factory.mktemp("clinic"))


@pytest.fixture(scope="module")
def page(server, clinic, tmp_path_factory):
    """A window on a deployment of a copy of the project, in which `scans` is declared too."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    folder = tmp_path_factory.mktemp("ui")
    shutil.copytree(REPOSITORY, folder / "project", ignore=shutil.ignore_patterns(*NOT_COPIED))
    declared = folder / "project" / "pipelines" / "defs" / "scans" / "defs.yaml"
    declared.parent.mkdir()
    declared.write_text(SCANS)
    own = {"SMALTI_STAGE": "staging", "SMALTI_ROOT": "s3://lake/root", "S3_ENDPOINT_URL": server}
    own |= {name.upper(): value for name, value in KEYS.items()} | {"TOKENS_TEXT": str(clinic.text)}
    with deployment(folder, folder / "project", **own) as url, browser(chromium, url) as page:
        yield page


def shards_of(server, name):
    """The newest version of a set's shards, and the number of the one with the tag `checked`."""
    options = {"endpoint_url": server, "key": KEYS["aws_access_key_id"], "secret": KEYS["aws_secret_access_key"]}
    store = open_store(f"s3://lake/root/stage-staging/{name}/shards", options)
    return load_manifest(store), read_tag(store, "checked").version


def run(page, name, state="Success"):
    """Materialise all assets of a set, and watch the run to its end."""
    begun = time.monotonic()
    materialize(page, name)
    wait_for_run(page, state, seconds=SECONDS)
    print(f"{name}: {state} {time.monotonic() - begun:.1f} s after the click")


def expect_stopped(page, name, check, text):
    """The check has failed, and says what is gone."""
    page.goto(f"/assets/{name}/shards?view=checks")
    page.get_by_text(check, exact=True).first.click()
    expect(page.get_by_text(text).first).to_be_visible()


def test_the_declaration_is_short():
    assert len(SCANS.strip().splitlines()) <= 20


def test_images_with_a_manifest_are_made_extended_and_stopped_when_most_are_gone(page, server, clinic):
    for version, per_class in ((1, 12), (2, 20)):
        clinic.show(per_class=per_class)
        run(page, "scans")
        manifest, checked = shards_of(server, "scans")
        assert (manifest.version, manifest.rows, checked) == (version, 5 * per_class, version)
    run(page, "scans")  # nothing changed
    assert shards_of(server, "scans")[0].version == 2
    page.goto("/assets/scans/shards?view=overview")
    expect(metadata_row(page, "what_was_done")).to_be_visible()
    clinic.show(per_class=5)
    run(page, "scans", "Failure")
    expect_stopped(page, "scans", "no_class_vanished", "75 of 100 rows are gone")
    manifest, checked = shards_of(server, "scans")
    assert (manifest.rows, checked) == (25, 2)


def test_tokens_are_made_extended_and_stopped_when_most_are_gone(page, server, clinic):
    for version, lines in ((1, 100), (2, 150)):
        clinic.write(lines)
        time.sleep(4)  # a file of the last three seconds may still change
        run(page, "tokens")
        manifest, checked = shards_of(server, "tokens")
        assert (manifest.version, manifest.rows, checked) == (version, lines, version)
    clinic.write(20)
    run(page, "tokens", "Failure")
    expect_stopped(page, "tokens", "few_rows_vanished", "130 of 150 rows are gone")
    assert shards_of(server, "tokens")[1] == 2
