"""Numbers of shards with added columns, against literals worked out by hand."""

import pickle
from dataclasses import replace

import numpy as np

from smalti.stream import StreamOptions
from smalti.stream.opened import OpenStreams, align_shards, with_aligned
from smalti.stream.shard_set import find_shard_set
from tests.shard_sets import write_set

# Three streams of 3, 2 and 2 shards; columns were added twice to the first, never to the second, once to the third:
#   streams 0 1 2 | 3 4 | 5 6     additions to the first 7 8 9 and 10 11 12     to the third 13 14
ALIGNED = align_shards([3, 2, 2], [2, 0, 1])


def test_each_shard_is_aligned_with_one_shard_of_each_addition():
    assert ALIGNED.tolist() == [[7, 8, 9, -1, -1, 13, 14], [10, 11, 12, -1, -1, -1, -1]]


def test_shards_are_followed_by_their_aligned_shards_with_the_place_of_each():
    shards, places = with_aligned(ALIGNED, np.array([6, 0, 4, 0]))
    assert shards.tolist() == [6, 14, 0, 7, 10, 4, 0, 7, 10]
    assert places.tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 3]
    assert [part.tolist() for part in with_aligned(ALIGNED, np.zeros(0, np.int64))] == [[], []]


def test_pickled_streams_have_no_number_for_each_shard(tmp_path):
    found = find_shard_set(StreamOptions(str(write_set(tmp_path / "set", 10))))
    stream = OpenStreams([replace(found, parts=found.parts * 3)])
    known = stream._aligned
    stream._aligned = np.zeros((2, 100_000), np.int64)
    pickled = pickle.dumps(stream)
    assert len(pickled) < 10_000
    assert np.array_equal(pickle.loads(pickled)._aligned, known)
