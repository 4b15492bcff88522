"""Rows of a version that are in two splits: held-out rows that are equal, byte for byte, to rows trained on."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from smalti.catalog.manifest import Manifest
from smalti.catalog.verify import open_checked
from smalti.format import ShardInfo
from smalti.format.reading.files import StoredSamples
from smalti.storage import Store

_MAX_EXAMPLES = 20
_Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class EqualRow:
    """A held-out row that is trained on as well."""

    split: str
    shard: str
    sample: int
    """Its place in the shard."""
    row: dict[str, Any]


@dataclass(frozen=True)
class RowLeakage:
    """The held-out rows of a version."""

    trained_on: str
    """The split that is trained on."""
    held_out: int
    """Rows of the other splits."""
    leaked: int
    """Those of them that are equal to a row that is trained on."""
    examples: tuple[EqualRow, ...]


def find_leaked_rows(store: Store, manifest: Manifest, *, trained_on: str = "train") -> RowLeakage:
    """Return which held-out rows are trained on as well. Reads each shard once or twice, and keeps 8 bytes of a row.

    Args:
        store: of the set.
        manifest: of the version.
        trained_on: name of the split; where there is none, the largest one.

    Raises:
        FormatError: a shard is not what its manifest says.
        StoreError: a shard cannot be read.
    """
    rows: dict[str, int] = {}
    for shard in manifest.shards:
        rows[str(shard.partition)] = rows.get(str(shard.partition), 0) + shard.samples
    trained = trained_on if trained_on in rows else max(rows, key=lambda split: rows[split], default=trained_on)
    others = [shard for shard in manifest.shards if str(shard.partition) != trained]
    held_out = [_hashes_of(store, shard) for shard in others]
    none = np.empty(0, np.uint64)
    wanted = np.unique(np.concatenate([none, *held_out]))
    searched = [shard for shard in manifest.shards if str(shard.partition) == trained and len(wanted)]
    leaks = np.concatenate([none, *(np.intersect1d(wanted, _hashes_of(store, shard)) for shard in searched)])
    leaked = [np.flatnonzero(np.isin(hashes, leaks)) for hashes in held_out]
    return RowLeakage(
        trained_on=trained,
        held_out=sum(map(len, held_out)),
        leaked=sum(map(len, leaked)),
        examples=_examples(store, others, leaked),
    )


def _hashes_of(store: Store, shard: ShardInfo) -> _Hashes:
    with open_checked(store, shard) as opened:
        samples: StoredSamples = opened.stored_samples()
        places = pairwise(samples.ends.tolist())
        return np.array([xxh3_64_intdigest(samples.data[begin:end]) for begin, end in places], np.uint64)


def _examples(store: Store, shards: list[ShardInfo], leaked: list[npt.NDArray[np.int64]]) -> tuple[EqualRow, ...]:
    found: list[EqualRow] = []
    for shard, places in zip(shards, leaked, strict=True):
        chosen = places[: _MAX_EXAMPLES - len(found)].tolist()
        if chosen:
            with open_checked(store, shard) as opened:
                name = shard.stored.basename
                found += (EqualRow(str(shard.partition), name, place, dict(opened[place])) for place in chosen)
    return tuple(found)
