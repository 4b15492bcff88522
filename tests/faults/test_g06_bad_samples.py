"""G6: a sample that cannot be decoded is an error with its id, shard and version."""

import json
import re
import shutil
import sys
import traceback

import pytest

from smalti.errors import FormatError
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

BAD = 27
SHARD, PER_SHARD = 4, 6  # 27 = 4 * 6 + 3
WAYS = [
    pytest.param({}, id="alone"),
    pytest.param({"num_workers": 2, "worker_kind": "thread"}, id="threads"),
    pytest.param({"num_workers": 2, "worker_kind": "process"}, id="processes", marks=pytest.mark.process),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A set with correct sizes and hashes, in which the JSON of one sample is invalid."""
    root = tmp_path_factory.mktemp("bad") / "root"
    with MDSWriter(out=str(root), columns={"id": "int", "meta": "bytes"}, size_limit=400) as writer:
        for number in range(40):
            writer.write({"id": number, "meta": b"{broken" if number == BAD else b'{"number": %d}' % number})
    shutil.rmtree(root / "_versions")
    index = json.loads((root / "index.json").read_text())
    del index["smalti"]
    for shard in index["shards"]:
        assert shard["samples"] in (PER_SHARD, 40 % PER_SHARD)
        shard["column_encodings"] = [{"bytes": "json"}.get(name, name) for name in shard["column_encodings"]]
        shard["hashes"], shard["raw_data"]["hashes"] = [], {}
        file = root / shard["raw_data"]["basename"]
        file.write_bytes(file.read_bytes().replace(b'"bytes"', b'"json" ', 1))
    (root / "index.json").write_text(json.dumps(index))
    return str(root)


def failure_of(root, **options):
    loader_options = {name: options.pop(name) for name in ("num_workers", "worker_kind") if name in options}
    dataset = StreamingDataset(remote=root, shuffle=True, **options)
    with pytest.raises((FormatError, ValueError)) as caught:
        list(StreamingDataLoader(dataset, 8, **loader_options))
    return caught.value, dataset.manifest.digest


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reads", ["columns", "samples"])
def test_g6_a_sample_that_does_not_decode_is_named_with_its_shard_and_version(root, way, reads):
    error, digest = failure_of(root, transform=None if reads == "columns" else dict, **way)
    assert isinstance(error, FormatError)
    for part in (f"sample {BAD} of {root}", f"shard.{SHARD:05}.mds", f"version digest {digest[:12]}", "column 'meta'"):
        assert part in str(error)


def test_g6_a_sample_read_by_its_id_is_named_in_the_same_way(root):
    dataset = StreamingDataset(remote=root)
    with pytest.raises(FormatError, match=f"sample {BAD} of .*version digest .*shard.0000{SHARD}.mds") as caught:
        dataset[BAD]
    assert (caught.value.sample_id, caught.value.digest) == (BAD, dataset.manifest.digest)


class FailingDecoder:
    """A user's decoder of images that fails."""

    def __call__(self, sample):
        if sample["id"] == BAD:
            raise ValueError("cannot identify image file")
        return sample


class FailingBatchDecoder(FailingDecoder):
    on_batches = True

    def __call__(self, columns):
        for number in columns["id"].tolist():
            super().__call__({"id": number})
        return columns


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("whole") / "root", 40))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes there")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transform", [FailingDecoder(), FailingBatchDecoder()], ids=["sample", "batch"])
def test_g6_an_error_of_a_transform_names_the_sample_and_its_version(whole, way, transform):
    error, digest = failure_of(whole, transform=transform, **way)
    assert type(error) is ValueError
    said = "".join(traceback.format_exception(error))
    assert "cannot identify image file" in said
    assert re.search(rf"samples? (\d+, )*{BAD}(, \d+)* of {re.escape(whole)}, version digest {digest[:12]}", said)
