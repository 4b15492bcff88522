"""The options of `dataframe_to_mds`, checked before anything is done."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from smalti.catalog.publishing import Mode
from smalti.format import ShardOptions
from smalti.spark.prepare import require
from smalti.spark.writing.transform import Transform, TransformFunction

ProgressChoice = bool | Literal["always"]

_MAX_SHARDS = 1_000_000


@dataclass(frozen=True)
class WriteOptions:
    """The keyword arguments of `dataframe_to_mds`, which documents each, with their defaults."""

    columns: Mapping[str, str | None] | None = None
    nulls: str | Mapping[str, Any] = "reject"
    compression: str | None = "zstd"
    hashes: tuple[str, ...] = ("xxh3_64",)
    size_limit: int | str | None = 1 << 26
    transform: Transform | TransformFunction | None = None
    partition_by: str | None = None
    shuffle_rows: bool | int = False
    target_shards: int | None = None
    mode: Mode = "create"
    progress: ProgressChoice = True
    write_id: str | None = None
    lineage: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        require("mode", " or ".join(map(repr, get_args(Mode))), self.mode, met=self.mode in get_args(Mode))
        require("progress", "True, False or 'always'", self.progress, met=self.progress in (True, False, "always"))
        require(
            "shuffle_rows",
            "False, True or a seed, a whole number of 64 bits",
            self.shuffle_rows,
            met=_is_seed(self.shuffle_rows),
        )
        require(
            "target_shards",
            f"a whole number from 1 to {_MAX_SHARDS:,}, or None",
            self.target_shards,
            met=self.target_shards is None
            or (type(self.target_shards) is int and 1 <= self.target_shards <= _MAX_SHARDS),
        )

    @property
    def shard_options(self) -> ShardOptions:
        """The options that concern shard files."""
        return ShardOptions(self.compression, tuple(self.hashes), self.size_limit)

    @property
    def seed(self) -> int | None:
        """Seed of the global shuffle; None if the rows keep the order of the frame."""
        if self.shuffle_rows is False:
            return 0 if self.target_shards is not None else None
        return 0 if self.shuffle_rows is True else self.shuffle_rows


def _is_seed(found: object) -> bool:
    return isinstance(found, int) and -(2**63) <= found < 2**63
