"""Which shards lie beside which, by numbers written out by hand."""

import numpy as np

from smalti.stream.joined import Beside

# Three streams of 3, 2 and 2 shards; two sets beside the first, none beside the second, one beside the third:
#   streams 0 1 2 | 3 4 | 5 6     beside the first 7 8 9 and 10 11 12     beside the third 13 14
BESIDE = Beside.of([3, 2, 2], [2, 0, 1])


def test_the_neighbours_of_each_shard():
    assert BESIDE.levels == 2
    assert BESIDE.at(0, np.arange(7)).tolist() == [7, 8, 9, -1, -1, 13, 14]
    assert BESIDE.at(1, np.arange(7)).tolist() == [10, 11, 12, -1, -1, -1, -1]
    assert [BESIDE.of_one(shard) for shard in (1, 3, 6)] == [[8, 11], [], [14]]


def test_shards_are_followed_by_their_neighbours_and_these_say_whose_they_are():
    shards, places = BESIDE.with_neighbours(np.array([6, 0, 4, 0]))
    assert shards.tolist() == [6, 14, 0, 7, 10, 4, 0, 7, 10]
    assert places.tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 3]
    assert [part.tolist() for part in BESIDE.with_neighbours(np.zeros(0, np.int64))] == [[], []]
