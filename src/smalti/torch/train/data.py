"""The data of a run: the version that all ranks open, the checks that it fits, and the loaders over it."""

from collections.abc import Mapping

from smalti.cache import CacheOptions, Source, default_cache_limit
from smalti.errors import CursorError, SchemaError
from smalti.ledger import LedgerWriter
from smalti.storage import open_store
from smalti.torch.dataset import StreamingDataset
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.batches import PixelsAndLabels
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.ranks import Ranks

_IMAGE_ENCODINGS = ("jpeg", "png", "bytes")


class RunData:
    """The training samples of one version of the shard set, and its evaluation samples if there are any. Collective.

    Raises:
        CursorError: the version's digest is not the pinned one, or ranks see different versions.
        SchemaError: a column is missing or has the wrong encoding, or a split has no samples.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks, *, version: int | None) -> None:
        self.config = config
        self._ranks = ranks
        self._cache_limit = config.cache_limit
        self.train = self._open_train(version)
        manifest = self.train.manifest
        self.version, self.digest = manifest.version, manifest.digest
        self._check_pin()
        self._check_columns(manifest.schema.columns())
        self.evaluation: StreamingDataset | None = None
        if config.eval_split is not None:
            # Opened by number, so that it is the same version even if a newer one has just been published.
            self.evaluation = self._dataset(config.eval_split, self.version, shuffle=False)

    def loader(self, dataset: StreamingDataset, ledger: LedgerWriter | None = None) -> StreamingDataLoader:
        """Return a loader of this rank's share of each step, which records the steps in a ledger if one is given."""
        pin_memory = self._ranks.device.type == "cuda"
        return StreamingDataLoader(dataset, num_workers=self.config.num_workers, ledger=ledger, pin_memory=pin_memory)

    def _open_train(self, version: int | None) -> StreamingDataset:
        """Open the training samples with a cache limit; the default limit depends on the version's size."""
        config = self.config
        dataset = self._dataset(config.train_split, version, shuffle=True)
        if config.cache_limit is not None:
            return dataset
        manifest, store = dataset.manifest, open_store(config.data, dict(config.storage_options))
        source = Source(store, manifest.digest, manifest.shards, CacheOptions(local=config.cache_dir))
        self._cache_limit = default_cache_limit(source)
        if self._cache_limit is None:
            return dataset
        dataset.close()
        return self._dataset(config.train_split, manifest.version or version, shuffle=True)

    def _dataset(self, split: str | None, version: int | None, *, shuffle: bool) -> StreamingDataset:
        config = self.config
        dataset = StreamingDataset(
            remote=config.data,
            local=config.cache_dir,
            cache_limit=self._cache_limit,
            split=split,
            version=version,
            batch_size=config.batch_per_rank(self._ranks.num_ranks),
            shuffle=shuffle,
            shuffle_seed=config.seed,
            transform=PixelsAndLabels(config.image_column, config.label_column, config.image_size),
            include_ids=True,
            world=self._ranks.world,
            storage_options=dict(config.storage_options),
        )
        if dataset.size == 0:
            raise SchemaError(
                f"split {split!r} of {config.data} has no samples; train on another split or write the data again."
            )
        return dataset

    def _check_pin(self) -> None:
        pinned = self.config.digest
        if pinned is not None and pinned != self.digest:
            raise CursorError(
                f"{self.config.data} version {self.version} has digest {self.digest}, but this run is "
                f"pinned to {pinned}; the data were changed or the version is another one: pin the right "
                "`version`, or leave `digest` out to accept it.",
                expected=pinned,
                found=self.digest,
            )
        seen = self._ranks.gather(self.digest, "compare the data's digests")
        if len(set(seen)) > 1:
            raise CursorError(
                f"the ranks opened different data at {self.config.data}: digests by rank are {seen}; a "
                "version was published while the run started, or the ranks do not see the same store: pin `version`.",
                digests=tuple(seen),
            )

    def _check_columns(self, columns: Mapping[str, str]) -> None:
        config = self.config
        for role, name in (("image_column", config.image_column), ("label_column", config.label_column)):
            if name not in columns:
                raise SchemaError(
                    f"`{role}` is '{name}', but {config.data} has the columns {', '.join(sorted(columns))}.",
                    column=name,
                )
        encoding = columns[config.image_column]
        if encoding not in _IMAGE_ENCODINGS:
            raise SchemaError(
                f"column '{config.image_column}' is encoded as '{encoding}'; the trainer decodes "
                f"{', '.join(_IMAGE_ENCODINGS)}. Write the images as JPEG or PNG bytes.",
                column=config.image_column,
                encoding=encoding,
            )
