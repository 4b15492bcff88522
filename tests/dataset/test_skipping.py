"""`on_error="skip"`: a sample that cannot be read is replaced by the next readable one, marked as a repeat."""

import io
import logging
import random
import re

import numpy as np
import pytest
from PIL import Image

from smalti.dataset import OrderOptions, StreamingDataset
from smalti.errors import BadImageError, ChecksumMismatch, FormatError, SchemaError, SkipLimitExceeded, StoreError
from smalti.images import DecodeImages
from smalti.stream import Stream
from smalti.world import World
from smalti.writer import MDSWriter
from tests.bad_sets import PER_SHARD, write_bad_set
from tests.seeds import seed_of
from tests.shard_sets import write_set

COUNT, BAD = 40, {3, 9, 10, 11, 27, 39}
INSTEAD = {3: 4, 9: 12, 10: 12, 11: 12, 27: 28, 39: 0}  # by hand: the next of the set that can be read


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_bad_set(tmp_path_factory.mktemp("bad") / "root", COUNT, BAD)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("whole") / "root", COUNT))


def opened(root, **options):
    return StreamingDataset(remote=root, **{"batch_size": 8, "include_ids": True, "on_error": "skip"} | options)


def fails_for(bad, *, on_batches, error=None):
    """Return a transform that fails for the samples with these ids."""

    error = ValueError("cannot use it") if error is None else error

    def of_sample(values):
        if values["id"] in bad:
            raise error
        return values

    def of_batch(columns):
        if not bad.isdisjoint(columns["id"].tolist()):
            raise error
        return columns

    of_batch.on_batches = True
    return of_batch if on_batches else of_sample


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), PermissionError(13, "denied"), ConnectionResetError(), ImportError("x")],
    ids=["full disk", "rights", "connection", "package"],
)
def test_an_error_of_the_machine_in_a_transform_is_raised_and_no_sample_is_skipped(whole, error):
    dataset = opened(whole, transform=fails_for({3}, on_batches=False, error=error))
    with pytest.raises(type(error)):
        list(dataset)
    dataset.close()


def test_an_unnumbered_error_of_a_decoder_is_one_of_the_sample(whole):
    dataset = opened(whole, transform=fails_for({3}, on_batches=False, error=OSError("image file is truncated")))
    assert 3 not in {sample["id"] for sample in dataset}
    dataset.close()


def marks(batches):
    """Return (id, sample id, position) of all samples, of batches by column or of lists of samples."""
    found = []
    for batch in batches:
        names = ("id", "_sample_id", "_position")
        rows = zip(*(batch[name].tolist() for name in names), strict=True) if isinstance(batch, dict) else None
        found.append(list(rows) if rows is not None else [tuple(each[name] for name in names) for each in batch])
    return found


def expected(bad, instead, *, batch=8, count=COUNT):
    """Return the same of one epoch in stored order."""
    rows = [(instead[n], instead[n], -1) if n in bad else (n, n, n) for n in range(count)]
    return [rows[first : first + batch] for first in range(0, count, batch)]


class Overridden(StreamingDataset):
    def __getitem__(self, at):
        return super().__getitem__(at)


WAYS = {
    "columns": lambda root, bad: opened(root),
    "samples": lambda root, bad: opened(root, transform=dict),
    "overridden": lambda root, bad: Overridden(remote=root, batch_size=8, include_ids=True, on_error="skip"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_that_does_not_decode_is_replaced_by_the_next_and_marked(root, way):
    assert marks(WAYS[way](root, BAD).batches()) == expected(BAD, INSTEAD)
    assert [tuple(each[n] for n in ("id", "_sample_id", "_position")) for each in WAYS[way](root, BAD)] == [
        row for rows in expected(BAD, INSTEAD) for row in rows
    ]


@pytest.mark.parametrize("on_batches", [False, True], ids=["sample", "batch"])
def test_so_is_a_sample_for_which_a_transform_fails(whole, on_batches):
    dataset = opened(whole, transform=fails_for(BAD, on_batches=on_batches))
    assert marks(dataset.batches()) == expected(BAD, INSTEAD)
    assert marks([list(dataset)]) == [[row for rows in expected(BAD, INSTEAD) for row in rows]]
    assert dataset.stats().samples_skipped == 2 * len(BAD)


def test_a_batch_of_which_all_samples_fail_is_a_step_of_repeats(whole):
    bad = set(range(8, 16))
    dataset = opened(whole, transform=fails_for(bad, on_batches=True))
    assert marks(dataset.batches()) == expected(bad, dict.fromkeys(bad, 16))


def test_images_that_do_not_decode_are_replaced_by_threads_too(tmp_path):
    stored = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 9, 9)).save(stored, "jpeg")
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int", "image": "bytes"}) as writer:
        for number in range(COUNT):
            writer.write({"id": number, "image": stored.getvalue()[: 40 if number in BAD else None]})
    decode = DecodeImages(size=8, columns=("image",), num_threads=3)
    batches = list(opened(str(tmp_path / "set"), transform=decode).batches())
    assert marks(batches) == expected(BAD, INSTEAD)
    assert {batch["image"].shape for batch in batches} == {(8, 8, 8, 3)}
    with pytest.raises(BadImageError):
        list(opened(str(tmp_path / "set"), transform=decode, on_error="raise").batches())


def test_a_stream_of_a_mixture_gives_the_replacements_of_its_own_samples(root, tmp_path):
    other = write_bad_set(tmp_path / "other", 20, {0, 19})
    dataset = opened(
        None,
        streams=[Stream(remote=root), Stream(remote=other)],
        shuffle=True,
        order=OrderOptions(batching_method="per_stream"),
        batch_size=4,
    )
    found = {position: sample for batch in marks(dataset.batches()) for _, sample, position in batch}
    bad = {*BAD, 40, 59}
    repeated = [sample for batch in marks(dataset.batches()) for _, sample, position in batch if position < 0]
    assert sorted(number for position, number in found.items() if position >= 0) == sorted(set(range(60)) - bad)
    assert sorted(repeated) == sorted([*INSTEAD.values(), 41, 41])


@pytest.mark.parametrize(("on_error", "limit", "error"), [("skip", 0, SkipLimitExceeded), ("raise", None, FormatError)])
def test_a_sample_that_was_asked_for_by_its_id_always_raises(root, on_error, limit, error):
    with pytest.raises(FormatError, match="sample 9 of"):
        StreamingDataset(remote=root, on_error=on_error)[9]
    with pytest.raises(error):
        list(
            StreamingDataset(
                remote=root, on_error=on_error, batch_size=8, **({"max_skipped": 0} if on_error == "skip" else {})
            )
        )


# ---------------------------------------------------------------------- the limit and the log


@pytest.mark.parametrize("limit", [5, 0.13, 2, 0, 0.01])
def test_more_samples_than_the_limit_are_an_error_that_names_the_first(root, limit):
    """Of 40 samples 6 are bad, by batches of 8: 1, 3, 0, 1, 1. The batch with the one too many raises."""
    dataset = opened(root, max_skipped=limit)
    taken = []
    with pytest.raises(SkipLimitExceeded) as caught:
        taken.extend(dataset.batches())
    before = np.cumsum([0, 1, 3, 0, 1, 1])
    assert len(taken) == int(np.argmax(before > int(limit if limit >= 1 else 40 * limit))) - 1
    assert re.search(
        rf"of {root} .*`max_skipped` allows {int(limit if limit >= 1 else 40 * limit)}\.", str(caught.value)
    )
    assert re.search(r"first are: sample 3 \(\S*shard.00000.mds\): FormatError: .*column 'meta'", str(caught.value))
    assert caught.value.sample_ids[0] == 3


def test_a_limit_that_is_just_enough_is_no_error_and_counts_for_each_epoch(root):
    dataset = opened(root, max_skipped=6)
    for _ in range(3):
        assert len(list(dataset.batches())) == 5
    assert dataset.stats().samples_skipped == 18
    assert "smalti_cache_skipped_samples_total 18" in dataset.stats().to_prometheus()


def test_each_skipped_sample_is_logged_with_shard_and_cause(root, caplog):
    with caplog.at_level(logging.WARNING, logger="smalti.dataset"):
        list(opened(root).batches())
    assert [record.args[0] for record in caplog.records] == sorted(BAD)
    said = caplog.records[4].getMessage()
    shard = rf"\S*shard.{27 // PER_SHARD:05}.mds"
    assert re.fullmatch(
        rf"skipped sample 27 of {root} \({shard}\): FormatError: {shard}, sample 3, column 'meta': not a value .*", said
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_error": "ignore"}, "`on_error` must be one of raise, skip"),
        ({"on_error": "raise", "max_skipped": 3}, "limit of on_error='skip'"),
        ({"max_skipped": -1}, "whole number of samples from 0, or a share"),
        ({"max_skipped": 1.5}, "whole number of samples from 0, or a share"),
        ({"max_skipped": True}, "whole number of samples from 0, or a share"),
        ({"max_skipped": "many"}, "whole number of samples from 0, or a share"),
    ],
)
def test_policies_that_make_no_sense_are_refused(root, options, words):
    with pytest.raises(ValueError, match=words):
        opened(root, **options)


# ---------------------------------------------------------------------- what is not one sample's fault


@pytest.mark.parametrize(
    "error",
    [
        SchemaError("no such column"),
        StoreError("gone"),
        ChecksumMismatch("other bytes"),
        FormatError("a shard"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("on_batches", [False, True], ids=["sample", "batch"])
def test_an_error_that_is_not_one_samples_is_raised(whole, on_batches, error):
    with pytest.raises(type(error)):
        list(opened(whole, transform=fails_for({9}, on_batches=on_batches, error=error)))


def test_a_damaged_shard_is_raised(tmp_path):
    root = write_set(tmp_path / "root", COUNT)
    (shard,) = root.rglob("shard.00001.mds")
    shard.write_bytes(shard.read_bytes()[:-3] + b"abc")
    with pytest.raises(ChecksumMismatch):
        list(opened(str(root)).batches())


def test_a_transform_that_fails_for_a_batch_only_as_a_whole_is_raised(whole):
    def of_several(columns):
        if len(columns["id"]) > 1:
            raise ValueError("only one at a time")
        return columns

    of_several.on_batches = True
    with pytest.raises(ValueError, match="only one at a time"):
        list(opened(whole, transform=of_several).batches())


@pytest.mark.parametrize("on_batches", [False, True], ids=["sample", "batch"])
def test_a_transform_that_always_fails_is_an_error_at_once(whole, on_batches):
    with pytest.raises(SkipLimitExceeded, match=r"sample 0 of .*cannot use it.* nor can the 39 samples after it"):
        list(opened(whole, transform=fails_for(set(range(COUNT)), on_batches=on_batches)).batches())


# ---------------------------------------------------------------------- order, resume, ranks


@pytest.mark.parametrize("seed", range(8))
def test_every_planned_sample_is_read_or_replaced_once_over_all_ranks_and_resumes(tmp_path_factory, whole, seed):
    """On a random world, with random bad samples, stopped at a random step and continued on another world."""
    rng = random.Random(seed_of(seed))
    bad = set(rng.sample(range(COUNT), rng.randint(0, 30)))
    state, seen = None, {}
    for stop in (rng.randint(0, 2), None):
        num_ranks, batch = rng.randint(1, 4), rng.randint(1, 5)
        steps, later = set(), None
        for rank in range(num_ranks):
            dataset = opened(
                whole, shuffle=True, batch_size=batch, world=World.flat(rank, num_ranks),
                transform=fails_for(bad, on_batches=rng.random() < 0.5),
            )  # fmt: skip
            if state is not None:
                dataset.load_state_dict(state)
            this_pass = dataset._smalti.begin_pass()
            dataset.load_state_dict(this_pass.start.to_state())
            plan, rows = dataset._smalti.reading(this_pass).plan, []
            for step, (planned, batch_rows) in enumerate(
                zip(dataset._smalti.planned(this_pass), marks(dataset.batches()), strict=True)
            ):
                if step == stop:
                    break
                rows.append(batch_rows)
                assert len(batch_rows) == batch
                for position, (number, sample, marked) in zip(planned[0].positions.tolist(), batch_rows, strict=True):
                    assert number == sample
                    assert number not in bad
                    if position >= 0:
                        assert position not in seen
                        seen[position] = marked >= 0
                        planned_id = int(plan.sample_ids(position, position + 1)[0])
                        assert (marked >= 0) == (planned_id not in bad)
                        assert marked < 0 or sample == planned_id
            steps.add(len(rows))
            later = dataset._smalti.reading(this_pass).cursor_after(len(rows)).to_state()
        assert len(steps) == 1
        state = later
        if state["epoch"] > 0:
            break
    assert sorted(seen) == list(range(COUNT))
    assert sum(not was_read for was_read in seen.values()) == len(bad)
