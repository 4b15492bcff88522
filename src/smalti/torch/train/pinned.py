"""The data of a run: all its datasets are opened here, in the versions that it is pinned to, the same on all ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti.cache import CacheOptions, default_cache_limit
from smalti.errors import CursorError, TrainingError, WorldMismatch
from smalti.storage.opening import service_of
from smalti.torch.dataset import StreamingDataset
from smalti.torch.train.config import RunConfig
from smalti.torch.train.ranks import Ranks

Pins = dict[str, tuple[int | None, str | None]]
"""Version and digest by address of the data; None: any."""


class PinnedData:
    """The datasets of a run on one rank."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self.pins: Pins = {}
        """Those of the data that were opened so far, or by an earlier life."""
        self._cache_limits: dict[str, int | None] = {}
        """Bytes of local copies by address of the data, as determined when the first dataset was opened."""

    def address(self, data: str | None = None) -> str:
        """Return the address of some data, by default those of the run: one name for one place, which cursors have.

        Raises:
            TrainingError: the run has no data.
        """
        address = data or self._config.data
        if not address:
            raise TrainingError("the run has no `data`: give `launch` or `dataloader` the address of a shard set.")
        return address if "://" in address or service_of(address) else str(Path(address).absolute())

    def open(
        self, address: str, split: str | None, batch_size: int, *, shuffle: bool, options: Mapping[str, Any]
    ) -> StreamingDataset:
        """Open a split in the version that the run is pinned to, which the first opening decides. Collective.

        Local copies of data without a limit may take half of the disk that is free when the data are first opened.

        Args:
            address: of the data.
            split: their split; None: all.
            batch_size: samples of a step over all ranks.
            shuffle: whether the order is shuffled.
            options: further arguments of `StreamingDataset`; a `version` among them takes the place of the pinned one.

        Raises:
            WorldMismatch: the batch does not divide over the ranks.
            CursorError: the version has not the digest that the run is pinned to, or ranks see different versions.
            SchemaError: there is no such split.
        """
        config, num_ranks = self._config, self._ranks.num_ranks
        if batch_size % num_ranks:
            raise WorldMismatch(
                f"`batch_size` {batch_size} cannot be divided over {num_ranks} ranks; it counts the samples of a step "
                "over all ranks: choose a multiple.",
                batch_size=batch_size,
                num_ranks=num_ranks,
            )
        is_own = bool(config.data) and address == self.address()
        version, digest = self.pins.get(address, (config.version, config.digest) if is_own else (None, None))
        dataset = StreamingDataset(
            remote=address,
            split=split,
            batch_size=batch_size // num_ranks,
            shuffle=shuffle,
            world=self._ranks.world,
            **{
                "version": version,
                "cache": CacheOptions(
                    local=config.cache_dir, cache_limit=config.cache_limit or self._cache_limits.get(address)
                ),
                "storage_options": dict(config.storage_options) if is_own else {},
                **options,
            },
        )
        self._cache_limits.setdefault(address, _with_cache_limit(dataset))
        opened = dataset.manifest
        if digest and opened.digest != digest:
            raise CursorError(
                f"{address} version {opened.version} has digest {opened.digest}, but this run is pinned to {digest}: "
                "the data were changed, or the version is another one. Pin the right `version`, or use another "
                "`run_dir` for other data.",
                expected=digest,
                found=opened.digest,
            )
        digests = self._ranks.gather(opened.digest, "compare the data's digests")
        if len(set(digests)) > 1:
            raise CursorError(
                f"the ranks opened different data at {address}: digests by rank are {digests}; a version was published "
                "while the run started, or the ranks do not see the same store: pin `version`.",
                digests=tuple(digests),
            )
        self.pins[address] = (opened.version, opened.digest)
        return dataset


def _with_cache_limit(dataset: StreamingDataset) -> int | None:
    """Limit the local copies of a dataset that has no limit, before it is read; return its limit in bytes.

    None: nothing is copied, or no limit can be kept.
    """
    reader = dataset._smalti
    if reader.cache_limit is None:
        limits = [limit for part in reader.stream.sets if (limit := default_cache_limit(part.source)) is not None]
        if limits:
            reader.close()  # opened again, in the same versions, by the next use
            reader.cache_limit = max(limits)
    return reader.cache_limit
