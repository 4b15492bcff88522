"""The data of a run on one rank: versions that it keeps to, and loaders that train and evaluate.

The first opening of some data decides their version; checkpoints have it, so that later lives of the run read the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from smalti.cache import CacheOptions, default_cache_limit
from smalti.catalog import Manifest
from smalti.dataset.order import Pass
from smalti.errors import CursorError, TrainingError, WorldMismatch
from smalti.order import Division
from smalti.storage.opening import service_of
from smalti.stream import Stream
from smalti.torch.dataset import StreamingDataset
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.config import RunConfig
from smalti.torch.train.ranks import Ranks

Pins = dict[str, tuple[int | None, str | None]]
"""Version and digest by address of the data; None: any."""
_OF_STREAMS = ("version", "tag", "storage_options")
"""Arguments of `StreamingDataset` that a stream has, too, and that a run decides for each."""
MIXTURE = "streams"
"""In place of an address, in the name of a mixture's cursor: the cursor itself names the streams."""
_SERVERS = ("https", "sftp")
"""Services with many independent servers, each of which has logins of its own."""


def cursor_name(split: str | None, address: str) -> str:
    """Return the name of the cursor of a loader of a split of the data at an address, or of a `MIXTURE`."""
    return f"{split or ''}@{address}"


class PinnedData:
    """The datasets of a run on one rank."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self.pins: Pins = {}
        """Those of the data that were opened so far, or by an earlier life; for a tag also by `address#tag`."""
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

    def single(self, data: str | None, storage_options: Mapping[str, Any] | None) -> Stream:
        """Return some data as the only stream of a loader; the data of the run, by default, have the run's options."""
        address = self.address(data)
        if storage_options is None and not self._is_own(address):
            storage_options = {}
        return Stream(remote=address, storage_options=storage_options)

    def open(
        self,
        streams: Sequence[Stream],
        split: str | None,
        batch_size: int,
        *,
        shuffle: bool,
        options: Mapping[str, Any],
    ) -> StreamingDataset:
        """Open shard sets in the versions that the run is pinned to, which the first opening decides. Collective.

        Local copies of data without a limit may take half of the disk that is free when the data are first opened.

        Args:
            streams: the shard sets, one or a mixture of several.
            split: their split, unless a stream has one; None: all.
            batch_size: samples of a step over all ranks.
            shuffle: whether the order is shuffled.
            options: further arguments of `StreamingDataset`; a `version` among them takes the place of the pinned one,
                for streams that have none of their own.

        Raises:
            WorldMismatch: the batch does not divide over the ranks.
            CursorError: the version has not the digest that the run is pinned to, or ranks see different versions.
            SchemaError: there is no such split.
            TrainingError: a stream's `remote` is not an address.
        """
        num_ranks = self._ranks.num_ranks
        if batch_size % num_ranks:
            raise WorldMismatch(
                f"`batch_size` {batch_size} cannot be divided over {num_ranks} ranks; it counts the samples of a step "
                "over all ranks: choose a multiple.",
                batch_size=batch_size,
                num_ranks=num_ranks,
            )
        pinned = tuple(self._pinned(stream, options) for stream in streams)
        places = ",".join(dict.fromkeys(str(stream.remote) for stream in pinned))
        limit = self._config.cache_limit or self._cache_limits.get(places)
        dataset = StreamingDataset(
            streams=pinned,
            split=split,
            batch_size=batch_size // num_ranks,
            shuffle=shuffle,
            world=self._ranks.world,
            **{
                "cache": CacheOptions(local=self._config.cache_dir, cache_limit=limit),
                **{name: value for name, value in options.items() if name not in _OF_STREAMS},
            },
        )
        reader = dataset._smalti
        if reader.cache_limit is None:
            sources = [part.sources[0] for part in reader.stream.sets]
            # None: nothing is copied, or no limit can be kept.
            limits = [limit for source in sources if (limit := default_cache_limit(source)) is not None]
            if limits:
                reader.close()  # opened again, in the same versions, by the next use
                reader.cache_limit = max(limits)
        self._cache_limits.setdefault(places, reader.cache_limit)
        for given, stream, manifest in zip(streams, pinned, dataset.manifests, strict=True):
            self._check(address := str(stream.remote), manifest)
            if (tag := given.tag or options.get("tag")) is not None:
                self.pins[f"{address}#{tag}"] = self.pins[address]
        return dataset

    def _pinned(self, stream: Any, options: Mapping[str, Any]) -> Stream:
        """Return a stream in the version that the run reads, with the address and the options of its store."""
        if not isinstance(stream, Stream) or not isinstance(stream.remote, str):
            raise TrainingError(f"`streams` must be smalti.Stream(remote=address, ...) each, found {stream!r:.80}.")
        address, config = self.address(stream.remote), self._config
        is_own = self._is_own(address)
        own = {name: getattr(stream, name) for name in _OF_STREAMS}
        given: dict[str, Any] = {name: options.get(name) if value is None else value for name, value in own.items()}
        # A run keeps to the version that a tag had at first.
        known, _ = self.pins.get(f"{address}#{given['tag']}", (None, None))
        if given["tag"] is None:
            known, _ = self.pins.get(address, (config.version if is_own else None, None))
        if given["version"] is None and known is not None:
            given |= {"version": known, "tag": None}
        if given["storage_options"] is None:
            # A stream gets those of the run's data on the same service, and the same server.
            service, data = service_of(address), config.data
            has_same_login = bool(data) and service == service_of(data)
            if service in _SERVERS:
                has_same_login = has_same_login and urlsplit(address).netloc == urlsplit(data).netloc
            given["storage_options"] = dict(config.storage_options) if has_same_login else {}
        return replace(stream, remote=address, **given)

    def _is_own(self, address: str) -> bool:
        return bool(self._config.data) and address == self.address()

    def _check(self, address: str, opened: Manifest) -> None:
        """Check that all ranks have opened the version that the run is pinned to, and keep to it. Collective."""
        config = self._config
        is_own = self._is_own(address)
        _, digest = self.pins.get(address, (None, config.digest if is_own else None))
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


class TrainingLoader(StreamingDataLoader):
    """A loader that calls a function when an epoch has been read to its end."""

    on_end: Callable[[int], object] | None = None
    """Called with the number of the epoch."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, as that of its base
        """Iterate over one epoch, or the rest of one."""
        yield from super().__iter__()
        if self.on_end is not None and self._pass is not None:
            self.on_end(self._pass.start.epoch)


class EvaluationLoader(StreamingDataLoader):
    """A loader that yields each sample once: it leaves out the batch of a rank that has no sample in the last step."""

    def __len__(self) -> int:
        """Return the number of this rank's batches."""
        view = self._view
        return _own_steps(view.reading(Pass(view.cursor_at_start(), view.world)).division)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, as that of its base
        """Iterate over one epoch."""
        steps: int | None = None
        for number, batch in enumerate(super().__iter__()):
            if steps is None and self._pass is not None:  # that of this iteration, which has begun now
                steps = _own_steps(self._view.reading(self._pass).division)
            if number < (steps or 0):
                yield batch


def _own_steps(division: Division) -> int:
    """Return the number of steps in which a rank has samples; in one that it has none, it reads a marked repeat."""
    last = division.num_steps - 1
    return last + 1 if last < 0 or (division.steps(last, last + 1)[0].positions >= 0).any() else last
