"""E1, E2, E13, E15: bytes that are truncated, flipped or re-encoded in transit are never delivered."""

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.catalog import load_manifest
from smalti.errors import ChecksumMismatch, FormatError, StoreError
from tests.faults.ways_of_reading import (
    ALONE,
    DEADLINE,
    FEW_WAYS,
    SHARD,
    assert_every_consumer_fails,
    assert_exact,
    assert_fails,
    assert_resumes,
    cached,
    crossed,
    expected,
    open_set,
    remove_cache,
    serve,
    written,
)
from tests.faultstore import Toxic

pytestmark = pytest.mark.torch

STORED = f"*{SHARD}*"
COMPRESSIONS = pytest.mark.parametrize("compression", [None, "zstd"])


def fetch_shard(store, manifest, tmp_path):
    """Fetch shard 3 in one attempt into an empty cache."""
    remove_cache(tmp_path)
    options = CacheOptions(local=str(tmp_path / "cache"), download_retry=1, download_timeout=DEADLINE)
    return ShardCache(ShardSource(store, manifest.digest, manifest.shards, options)).shard(3)


def assert_no_fault_passes(faults, tmp_path, toxics):
    """Assert that a fetch with any one of the faults is an error that leaves no file; return how many were planted."""
    store = faults.open("set", request_attempts=1)
    manifest = load_manifest(store)
    whole = [sample["text"] for sample in fetch_shard(store, manifest, tmp_path)]
    refused = 0
    for toxic in toxics:
        faults.heal()
        faults.plant(toxic)
        with pytest.raises((StoreError, ChecksumMismatch), match="shard 3"):
            fetch_shard(store, manifest, tmp_path)
        refused += 1
        assert [name for name in cached(tmp_path) if not name.endswith(".lock")] == []
    faults.heal()
    assert [sample["text"] for sample in fetch_shard(store, manifest, tmp_path)] == whole
    return refused


def truncations(full_header_step, short_header_step):
    """Return faults that truncate a body every so many bytes, with its full or its short length in the header."""
    steps = {False: full_header_step, True: short_header_step}
    return [
        Toxic("truncate", key=STORED, after=after, honest=honest)
        for honest, step in steps.items()
        for after in range(0, 562, step)
    ]


@pytest.mark.slow
def test_e1_a_shard_truncated_at_any_of_many_places_is_refused(faults, tmp_path):
    serve(faults)
    assert assert_no_fault_passes(faults, tmp_path, truncations(187, 61)) == 4 + 10


@pytest.mark.slow
@pytest.mark.nightly
def test_e1_a_shard_truncated_at_any_byte_is_refused(faults, tmp_path):
    serve(faults)
    assert assert_no_fault_passes(faults, tmp_path, truncations(20, 1)) == 29 + 562


@pytest.mark.parametrize(("way", "honest"), crossed(ALONE, [False, True]))
def test_e1_an_epoch_whose_shards_are_all_truncated_once_is_exact(faults, tmp_path, way, honest):
    serve(faults)
    for number in range(7):
        faults.plant(Toxic("truncate", key=f"*shard.{number:05}*", after=99, honest=honest, count=1))
    assert_exact(open_set(tmp_path), way)


@pytest.mark.parametrize("way", FEW_WAYS)
def test_e1_a_shard_that_stays_truncated_is_an_error_and_never_a_short_epoch(faults, tmp_path, way):
    serve(faults).plant(Toxic("truncate", key=STORED, honest=True))
    dataset = open_set(tmp_path)
    loader, taken = assert_fails(dataset, way, ChecksumMismatch, f"shard 3 .*{SHARD}.*expected 562 bytes, found 281")
    faults.heal()
    assert_resumes(loader, taken)


@COMPRESSIONS
def test_e2_a_shard_with_one_flipped_bit_is_refused(faults, tmp_path, compression):
    serve(faults, compression=compression)
    num_bits = len(faults.get(key_in_store(compression))) * 8
    flips = [Toxic("corrupt", key=STORED, at=number * num_bits // 40) for number in range(40)]
    assert assert_no_fault_passes(faults, tmp_path, flips) == 40


@pytest.mark.slow
@pytest.mark.nightly
@COMPRESSIONS
def test_e2_each_of_a_thousand_flipped_bits_is_refused(faults, tmp_path, compression):
    """500 bits of a plain shard, and 500 of a compressed one."""
    serve(faults, compression=compression)
    num_bits = len(faults.get(key_in_store(compression))) * 8
    flips = [Toxic("corrupt", key=STORED, at=number * num_bits // 500) for number in range(500)]
    assert assert_no_fault_passes(faults, tmp_path, flips) == 500


def key_in_store(compression):
    root = written(compression=compression)
    return "set/" + next(path for path in root.rglob(f"{SHARD}*")).relative_to(root).as_posix()


@pytest.mark.parametrize(("way", "compression"), crossed(ALONE, [None, "zstd"]))
def test_e2_an_epoch_with_occasional_bit_flips_is_exact(faults, tmp_path, way, compression):
    serve(faults, compression=compression)
    for number in range(7):
        faults.plant(Toxic("corrupt", key=f"*shard.{number:05}*", bits=1 + number, count=1))
    assert_exact(open_set(tmp_path), way, compression=compression)


@pytest.mark.parametrize("way", FEW_WAYS)
def test_e13_a_compressed_shard_that_stays_corrupt_is_an_error_on_every_consumer(faults, tmp_path, way):
    serve(faults, compression="zstd").plant(Toxic("corrupt", key=STORED))
    dataset = open_set(tmp_path)
    loader, taken = assert_fails(dataset, way, ChecksumMismatch, f"shard 3 .*{SHARD}")
    assert_every_consumer_fails(dataset, ChecksumMismatch, 30)
    faults.heal()
    assert_resumes(loader, taken, compression="zstd")


@pytest.mark.parametrize("way", FEW_WAYS)
@pytest.mark.slow
def test_e13_a_corrupt_stream_without_checksums_is_refused_or_of_the_right_size(faults, tmp_path, way):
    """Without hashes, zstd itself detects most damage, and the unpacked size is always checked."""
    serve(faults, compression="zstd", hashes=())
    for number in range(7):
        faults.plant(Toxic("corrupt", key=f"*shard.{number:05}*", at=3 * 8, count=1))  # in zstd's magic number
    assert_exact(open_set(tmp_path), way, compression="zstd", hashes=())
    faults.plant(Toxic("corrupt", key=STORED, at=3 * 8))
    remove_cache(tmp_path)
    assert_fails(open_set(tmp_path), way, FormatError, f"shard 3 .*{SHARD}")


@pytest.mark.parametrize(("way", "compression"), crossed(FEW_WAYS, [None, "zstd"]))
@pytest.mark.slow
def test_e15_a_content_encoding_added_by_a_proxy_is_refused_or_decoded(faults, tmp_path, way, compression):
    serve(faults, compression=compression)
    faults.plant(Toxic("gzip", key="*/shard.*", count=3))
    assert_exact(open_set(tmp_path, retry=4), way, compression=compression)
    faults.plant(Toxic("gzip", key=STORED))
    remove_cache(tmp_path)
    assert_fails(open_set(tmp_path), way, ChecksumMismatch, f"shard 3 .*{SHARD}")


def test_e15_no_content_encoding_is_requested(faults, tmp_path):
    serve(faults)
    assert_exact(open_set(tmp_path), {})
    asked = {entry.headers.get("accept-encoding", "") for entry in faults.log("GET")}
    assert asked <= {"", "identity"}


def test_the_expected_epoch_is_complete():
    assert len(expected()) == 60
