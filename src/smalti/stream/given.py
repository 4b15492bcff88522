"""What samples of several shard sets are given as: the logical types of each, or of all where they are the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smalti.errors import SchemaError
from smalti.format.logical import LogicalTypes

Ids = NDArray[np.int64]


class Given(Protocol):
    """From what shards hold to what a reader gets."""

    def sample(self, stored: dict[str, Any], sample_id: int) -> dict[str, Any]:
        """One sample."""

    def batch(self, stored: dict[str, Any], sample_ids: Ids) -> dict[str, Any]:
        """A batch by column."""


def given_of(each: Sequence[LogicalTypes | None], ends: Ids) -> Given | None:
    """How samples are given; None where all are given as they are stored.

    Args:
        each: the logical types of every stream.
        ends: the sample id after the last one of every stream.
    """
    first = each[0]
    if any(other != first for other in each):
        return _Different(tuple(each), ends)
    return None if first is None else _Alike(first)


@dataclass(frozen=True)
class _Alike:
    types: LogicalTypes

    def sample(self, stored: dict[str, Any], sample_id: int) -> dict[str, Any]:  # noqa: ARG002 - all are alike
        return self.types.sample(stored)

    def batch(self, stored: dict[str, Any], sample_ids: Ids) -> dict[str, Any]:  # noqa: ARG002
        return self.types.batch(stored)


@dataclass(frozen=True)
class _Different:
    each: tuple[LogicalTypes | None, ...]
    ends: Ids

    def sample(self, stored: dict[str, Any], sample_id: int) -> dict[str, Any]:
        types = self.each[int(np.searchsorted(self.ends, sample_id, side="right"))]
        return stored if types is None else types.sample(stored)

    def batch(self, stored: dict[str, Any], sample_ids: Ids) -> dict[str, Any]:
        streams = np.unique(np.searchsorted(self.ends, sample_ids, side="right")).tolist() or [0]
        types = self.each[streams[0]]
        for stream in streams[1:]:
            if self.each[stream] != types:
                raise SchemaError(
                    f"streams {streams[0]} and {stream} have different logical types, so that a batch by column would "
                    "mix what their values stand for. Write them alike, read them sample by sample, or read what is "
                    "stored with `logical=False`.",
                    streams=(streams[0], stream),
                )
        return stored if types is None else types.batch(stored)
