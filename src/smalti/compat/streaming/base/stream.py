"""Stream: one of the shard sets that a StreamingDataset mixes, with MosaicML Streaming's mutable attributes.

`Stream.to_smalti` returns the declaration that the engine reads. The other methods do by themselves what MosaicML's
do: load the index, fetch and unpack single shards to `local`, compute weights.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from smalti.compat.streaming.base.registry_utils import create_registry
from smalti.cursor import WEIGHT_NAMES
from smalti.errors import StoreError
from smalti.order.mosaic import StreamWeight, weigh_streams
from smalti.storage.opening import check_address
from smalti.stream import Stream as EngineStream

__all__ = ["Stream", "streams_registry"]

_FETCHING = ("download_retry", "download_timeout", "keep_zip")


class Stream:
    """One of the shard sets that a StreamingDataset mixes.

    A dataset fills in what is not given: from its own arguments how to fetch, and from the sizes of all streams the
    two weights that were not given.

    Args:
        remote: URL or folder of the set; None to read `local` in place. Any address that `smalti.storage` knows.
        local: folder for fetched shards; by default a temporary folder that is named by `remote` and must not exist.
        split: folder of the split, below both.
        proportion: share of the epoch, relative to the other streams' shares.
        repeat: times that an epoch takes the stream.
        choose: samples that an epoch takes of the stream.
        download_retry: attempts for one file.
        download_timeout: seconds without progress after which fetching a file fails.
        validate_hash: hash that the index must have for every file.
        keep_zip: keep compressed files after unpacking.

    Raises:
        ValueError: more than one weight is given, a number is out of range, or `remote` is no known address.
        FileExistsError: the temporary folder exists.
    """

    # Present once they are given or derived, as in MosaicML Streaming.
    proportion: float
    repeat: float
    choose: int
    download_retry: int
    download_timeout: float
    keep_zip: bool
    safe_keep_zip: bool

    def __init__(  # noqa: PLR0913 - MosaicML's signature
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> None:
        self.remote = os.fspath(remote) if isinstance(remote, Path) else remote
        self.split = split or ""
        self.validate_hash = validate_hash
        self._local = local
        self._given_weights = _present(proportion=proportion, repeat=repeat, choose=choose)
        if len(self._given_weights) > 1:
            raise ValueError(
                "At most one of `proportion`, `repeat`, and `choose` may be specified; the others are derived; found "
                f"{', '.join(self._given_weights)}."
            )
        fetching = _present(download_retry=download_retry, download_timeout=download_timeout, keep_zip=keep_zip)
        self._given_fetching = frozenset(fetching)
        for name, value in (self._given_weights | fetching).items():
            _check_number(name, value)
            setattr(self, name, value)
        if self.remote:
            _check_remote(self.remote)
        self.local = self._make_temporary_folder() if local is None else os.fspath(local)
        self._set_safe_keep_zip()

    def to_smalti(self) -> EngineStream:
        """Return the engine's declaration of this stream, with everything that is given or filled in by now.

        Weights are the given ones, not those that `apply_weights` derived.

        Raises:
            ValueError: neither `remote` nor `local` is given, or a number is out of range.
        """
        if not (self.remote or self._local):
            raise ValueError("`remote` and/or `local` path must be provided")
        fetching = {name: getattr(self, name, None) for name in _FETCHING}
        if fetching["download_retry"] is not None:
            fetching["download_retry"] = max(1, fetching["download_retry"])  # the engine counts the first attempt
        return EngineStream(
            remote=self.remote or None,
            local=self.local,
            split=self.split or None,
            validate_hash=self.validate_hash or None,
            **self._weights(),
            **fetching,
        )

    def apply_default(self, default: dict[str, Any]) -> None:
        """Fill in what was not given.

        Args:
            default: the dataset's `split`, `download_retry`, `download_timeout`, `validate_hash` and `keep_zip`.

        Raises:
            ValueError: neither `remote` nor `local` is given.
        """
        if not (self.remote or self._local):
            raise ValueError("`remote` and/or `local` path must be provided")
        self.split = self.split or default["split"] or ""
        if self.validate_hash is None:
            self.validate_hash = default["validate_hash"] or None
        for name in _FETCHING:
            if name not in self._given_fetching:
                setattr(self, name, default[name])
        self._set_safe_keep_zip()

    @classmethod
    def validate_weights(cls, streams: Sequence[Self]) -> tuple[bool, bool]:
        """Return whether the streams have relative weights, and whether they have none.

        Raises:
            ValueError: a stream has more than one weight, or relative and absolute weights are mixed.
        """
        given = [[name for name in WEIGHT_NAMES if hasattr(stream, name)] for stream in streams]
        for number, names in enumerate(given):
            if len(names) > 1:
                raise ValueError(
                    "Streams must provide at most one of `proportion`, `repeat`, or `choose`; found "
                    f"{', '.join(names)} (error in stream {number}). A stream that a dataset has used has all of them: "
                    "make a new one."
                )
            if ("proportion" in names) != ("proportion" in given[0]):
                raise ValueError(
                    "Relative (`proportion`) and absolute (`repeat`, `choose`, none) stream weights are incompatible "
                    f"with each other (error in stream {number}). Give all streams a `proportion`, or none."
                )
        return "proportion" in given[0], not any(given)

    @classmethod
    def apply_weights(
        cls,
        streams: Sequence[Self],
        samples_per_stream: NDArray[np.int64],
        choose_per_epoch: int | None,
        seed: int,
    ) -> int:
        """Derive the weights that were not given, set them as attributes, and return the samples of an epoch.

        Args:
            streams: all streams of a dataset.
            samples_per_stream: samples of each.
            choose_per_epoch: samples of an epoch, with relative weights or none; None for as many as there are.
            seed: seed that chooses the streams which get one more sample by rounding.

        Raises:
            ValueError: the weights contradict each other, or take nothing.
        """
        are_relative, are_unspecified = cls.validate_weights(streams)
        if choose_per_epoch and not (are_relative or are_unspecified):
            raise ValueError(
                f"Only provide `choose` when weighting streams relatively; found {choose_per_epoch} samples for an "
                "epoch and streams with `repeat` or `choose`."
            )
        samples = np.asarray(samples_per_stream, np.int64)
        weights = [StreamWeight(**stream._weights()) for stream in streams]
        weighed = weigh_streams([[count] for count in samples], weights, epoch_size=choose_per_epoch, seed=seed)
        chosen = np.array([each.choose for each in weighed], np.int64)
        repeats = np.divide(chosen, samples, out=np.zeros(len(chosen)), where=samples > 0)
        for stream, each, choose, repeat in zip(streams, weighed, chosen, repeats, strict=True):
            stream._given_weights = stream._weights()
            stream.proportion, stream.repeat, stream.choose = np.float64(each.proportion), repeat, choose
        return int(chosen.sum())

    def _weights(self) -> dict[str, Any]:
        """Return the weight that was given, or set since, by name; empty without one."""
        present = {name: getattr(self, name) for name in WEIGHT_NAMES if hasattr(self, name)}
        return present if len(present) < 2 else self._given_weights  # all three: two of them were derived

    def _set_safe_keep_zip(self) -> None:
        """Keep compressed files also where they are the only copy of the set."""
        if hasattr(self, "keep_zip"):
            self.safe_keep_zip = bool(self.keep_zip) or self.remote in {None, self.local}

    def _get_temporary_directory(self) -> str:
        """Return the path of the folder for fetched shards that follows from `remote` and `split`."""
        name = ""
        if self.remote is not None:
            name = hashlib.blake2s(self.remote.encode("utf-8"), digest_size=16).hexdigest()
        return os.path.join(tempfile.gettempdir(), name, self.split)  # noqa: PTH118 - MosaicML's path, to the character

    def _make_temporary_folder(self) -> str:
        from smalti.compat.streaming.base.distributed import barrier, get_local_rank

        folder = self._get_temporary_directory()
        if get_local_rank() == 0:
            try:
                os.makedirs(folder)  # noqa: PTH103 - the path is text
            except FileExistsError as error:
                raise FileExistsError(
                    f"Could not create a temporary local directory {folder} because it already exists. To reuse what "
                    "was fetched there, pass it as `local`; otherwise delete it, or pass another folder."
                ) from error
        barrier()
        return folder


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _check_number(name: str, value: Any) -> None:
    if name == "download_timeout":
        if value <= 0:
            raise ValueError(f"`download_timeout` must be positive, found {value}.")
    elif name != "keep_zip" and value < 0:
        raise ValueError(f"`{name}` must be non-negative, found {value}.")


def _check_remote(remote: str) -> None:
    try:
        check_address(remote)
    except StoreError as error:  # an OSError, and MosaicML raises ValueError
        raise ValueError(f"Unsupported remote path: {error.message}") from error


streams_registry = create_registry(
    "streaming",
    "streams_registry",
    generic_type=type[Stream],
    entry_points=True,
    description="The streams registry is used for registering Stream classes.",
)
"""The classes that `StreamingDataset(stream_name=...)` can name."""

streams_registry.register("stream", func=Stream)
