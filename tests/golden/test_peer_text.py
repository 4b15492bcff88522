"""MosaicML's own readers open the text shards and the merged index files that Smalti writes."""

import pytest

from smalti import LocalDataset, MDSWriter, merge_index
from tests.combinations import nightly
from tests.golden.conftest import peer_reads
from tests.text_writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter

pytestmark = [pytest.mark.process, pytest.mark.slow]

COLUMNS = {"id": "int", "naïve": "str", "x": "float"}
SAMPLES = [{"id": (-7) ** i, "naïve": "日本 \r é" * (i % 3), "x": i / 7 - 1} for i in range(25)]
WRITERS = {
    "json": (JSONWriter, {}),
    "json-crlf": (JSONWriter, {"newline": "\r\n"}),
    "csv": (CSVWriter, {"newline": "\r\n"}),
    "tsv": (TSVWriter, {}),
    "xsv": (XSVWriter, {"separator": "||"}),
}


@pytest.mark.parametrize(
    ("kind", "how", "compression"),
    [
        ("json", "local", None),
        ("json-crlf", "streaming", "zstd:7"),
        ("csv", "streaming", "gz"),
        ("tsv", "streaming", "zstd"),
        *nightly([pytest.param("csv", "local", None), pytest.param("xsv", "streaming", None)]),
    ],
)
def test_peer_finds_every_value_that_was_written(peer, tmp_path, kind, how, compression):
    kind, options = WRITERS[kind]
    with kind(out=tmp_path / "set", columns=COLUMNS, compression=compression, size_limit=400, **options) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    assert len(writer.manifest.shards) > 2
    assert peer_reads(peer, tmp_path / "set", tmp_path / "found.json", how) == SAMPLES


def test_peer_reads_a_merged_set_of_all_formats(peer, tmp_path):
    """Each part has another writer and depth; the peer reads from it what Smalti reads."""
    parts = [(MDSWriter, {}), (JSONWriter, {}), (CSVWriter, {}), (XSVWriter, {"separator": "; "})]
    columns = {"id": "int", "text": "str"}
    samples = [{"id": i, "text": f"part {i // 10}"} for i in range(40)]
    for number, (kind, options) in enumerate(parts):
        out = tmp_path / "set" / f"part-{number + 8}" / ("deep" if number % 2 else "")
        with kind(out=out, columns=columns, compression="zstd", size_limit=200, **options) as writer:
            for sample in samples[10 * number : 10 * number + 10]:
                writer.write(sample)
    MDSWriter(out=tmp_path / "set" / "part-99", columns=columns).finish()  # the partition that had no rows
    merge_index(str(tmp_path / "set"))
    assert LocalDataset(tmp_path / "set")[:] == samples
    assert peer_reads(peer, tmp_path / "set", tmp_path / "found.json", "streaming") == samples
