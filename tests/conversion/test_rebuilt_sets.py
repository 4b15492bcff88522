"""A set that is built again elsewhere: the same digest, so that checkpoints of one continue with the other."""

import pytest

import smalti
from smalti import convert, load_manifest
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.errors import CursorError
from smalti.exchange import copy_version
from tests.conversion.rows import numbers
from tests.conversion.test_images import put
from tests.stores import MemoryStore

PHOTOS = [f"{name}/{number}.jpg" for name in ("daisy", "rose") for number in range(30)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return put(tmp_path_factory.mktemp("photos") / "in", *PHOTOS)


def test_photos_converted_three_times_have_one_digest_in_any_store_and_with_any_number_of_processes(photos, tmp_path):
    places = [tmp_path / "one", tmp_path / "two", MemoryStore()]
    made = [
        convert(photos, place, processes=processes, size_limit=8192, write_id=write_id)
        for place, processes, write_id in zip(places, (1, 2, 1), (None, None, "third-write"), strict=True)
    ]
    assert len({manifest.digest for manifest in made}) == 1
    assert len({manifest.shards[0].raw.basename for manifest in made}) == 3
    assert len(made[0].shards) > 3


def test_another_compression_is_another_digest_because_shards_name_it(photos, tmp_path):
    plain, packed = (
        convert(photos, tmp_path / str(compression), processes=1, compression=compression)
        for compression in (None, "zstd")
    )
    assert plain.row_hash == packed.row_hash
    assert plain.digest != packed.digest


def opened(place):
    return StreamingDataset(remote=str(place), batch_size=4, shuffle=True, order=OrderOptions(tail="short"))


def test_a_checkpoint_in_the_middle_of_an_epoch_continues_in_a_set_that_was_built_again_and_in_a_copy(tmp_path):
    source = numbers((40,), (40,), (17,))
    for name in ("one", "two"):
        convert(source, tmp_path / name, processes=1, size_limit=300)
    copy_version(str(tmp_path / "one"), str(tmp_path / "copy"))
    first = opened(tmp_path / "one")
    batches = first.batches()
    begun = [number for _ in range(9) for number in next(batches)["id"].tolist()]
    state = first.state_dict(9 * 4)
    rest = [number for batch in batches for number in batch["id"].tolist()]
    assert sorted(begun + rest) == list(range(97))
    for name in ("two", "copy"):
        other = opened(tmp_path / name)
        other.load_state_dict(state)
        assert [number for batch in other.batches() for number in batch["id"].tolist()] == rest


def test_a_checkpoint_is_refused_by_a_set_of_other_rows(tmp_path):
    for name, rows in (("one", 40), ("two", 41)):
        convert(numbers((rows,)), tmp_path / name, processes=1)
    state = opened(tmp_path / "one").state_dict(0)
    with pytest.raises(CursorError, match="data set digest"):
        opened(tmp_path / "two").load_state_dict(state)


def test_a_version_that_is_overwritten_by_its_own_rows_has_its_digest(tmp_path):
    place = str(tmp_path / "set")
    made = [
        convert(numbers((40,)), place, processes=1, mode="overwrite", write_id=f"write-{number}") for number in range(2)
    ]
    assert [manifest.version for manifest in made] == [1, 2]
    assert made[0].digest == made[1].digest == load_manifest(place).digest
    assert smalti.diff(place, 1, 2).is_equal
