"""Versions and images that assets of a team's own take from a data set, and hand on to it.

All of them read what the run that calls them builds on: the materialisation of the same run, else that of the run
which it re-executes, else the newest. An own asset and the stages of a data set so agree on one version, although
others may be published meanwhile.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from smalti.catalog import load_manifest
from smalti.dataset import StreamingDataset
from smalti.errors import CatalogError
from smalti.spark import ImageFile, ImageFolder
from smalti.storage import open_store
from smalti_dagster.declaration import Declaration
from smalti_dagster.lineage import upstream
from smalti_dagster.resources.binding import open_resources
from smalti_dagster.sources.inventory import inventories_of, load_inventory, save_inventory
from smalti_dagster.sources.manifest import digest_of

Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@dataclass(frozen=True)
class MaterializedVersion:
    """A version of a shard set, as its materialisation names it."""

    key: dg.AssetKey
    url: str
    """Address of the shard set."""
    number: int
    digest: str
    """Digest of its content."""
    samples: int
    storage_options: dict[str, Any] = field(repr=False)
    """Options of `open_store` for the address; secret: never log them."""

    def metadata(self) -> dict[str, Any]:
        """Return the version as metadata of an asset that is made from it."""
        return {"shards": self.key.to_user_string(), "shards_version": self.number, "shards_digest": self.digest}


def materialized_version(context: Context, data_set: Declaration | str) -> MaterializedVersion:
    """Return the version of a shard set that the asset or check of this context builds on.

    Args:
        context: of an asset or check of your own, which depends on `<name>/shards`.
        data_set: the data set, or its name, also if a `defs.yaml` declares it.

    Returns:
        Key, address, number, digest and number of samples; `metadata()` gives them for a materialisation.

    Raises:
        dg.Failure: the shards were never materialised.
        VersionNotFound: a vacuum has removed the version.
        CatalogError: the set was replaced: that number has another content now.

    Examples:
        ```python
        @dg.asset(deps=[dg.AssetKey(["photos", "shards"])])
        def embeddings(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            version = materialized_version(context, "photos")
            ...
            return dg.MaterializeResult(metadata=version.metadata())
        ```
    """
    key = dg.AssetKey([data_set if isinstance(data_set, str) else data_set.name, "shards"])
    facts = upstream(context, key)
    url = str(facts["dagster/uri"])
    with open_resources(context, ["storage"]) as resources:
        options = resources["storage"].options_for(url)
    manifest = load_manifest(open_store(url, options), version=int(facts["version"]))
    if manifest.digest != facts["digest"]:
        raise CatalogError(
            f"version {manifest.version} of {url} has digest {manifest.digest}, expected {facts['digest']}: the set "
            f"was replaced; materialise {key.to_user_string()} again",
            expected=facts["digest"],
            found=manifest.digest,
        )
    return MaterializedVersion(key, url, manifest.version, manifest.digest, manifest.rows, dict(options))


def open_shards(context: Context, data_set: Declaration | str, **options: Any) -> StreamingDataset:
    """Return exactly the materialised version of a shard set, opened for reading.

    Args:
        context: of an asset or check of your own, which depends on `<name>/shards`.
        data_set: the data set, or its name.
        options: of `smalti.StreamingDataset`: `split`, which a set with splits needs, `columns`, `shuffle`,
            `batch_size` and others. By default each sample is read once, in the order in which they are stored.

    Returns:
        The data set; `dataset[0]` is a sample, and it can be iterated.

    Raises:
        dg.Failure: the shards were never materialised.
        VersionNotFound: a vacuum has removed the version.
        CatalogError: the set was replaced, or has no such split.

    Examples:
        ```python
        @dg.asset_check(asset=["photos", "shards"], blocking=True)
        def labels_are_known(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            samples = open_shards(context, "photos", split="train", columns=["label"])
            labels = {int(sample["label"]) for sample in samples}
            return dg.AssetCheckResult(passed=labels <= {0, 1, 2})
        ```
    """
    version = materialized_version(context, data_set)
    given = {"batch_size": 1, **options}  # samples are repeated to fill the last of larger batches
    return StreamingDataset(
        remote=version.url, version=version.number, storage_options=version.storage_options, **given
    )


def open_images(context: dg.AssetExecutionContext, data_set: Declaration) -> ImageFolder:
    """Return the images of a data set as `<name>/raw` has listed them: names, labels, sizes and classes.

    Args:
        context: of an asset of your own, which depends on `<name>/raw`.
        data_set: a data set of images.

    Returns:
        The inventory: `files` with `path`, `label` and `num_bytes` each, and `classes`, the names of the labels.

    Raises:
        dg.Failure: `<name>/raw` was never materialised.
        StoreNotFound: the inventory is gone; materialise `<name>/raw` again.

    Examples:
        ```python
        @dg.asset(deps=[photos.key("raw")])
        def num_small(context: dg.AssetExecutionContext) -> int:
            return sum(file.num_bytes < 100_000 for file in open_images(context, photos).files)
        ```
    """
    facts = upstream(context, data_set.key("raw"))
    with open_resources(context, ["storage"]) as resources:
        return load_inventory(data_set, resources["storage"], str(facts["inventory"]))


def hand_on_images(
    context: dg.AssetExecutionContext, data_set: Declaration, files: Iterable[ImageFile]
) -> dg.MaterializeResult[Any]:
    """Return the materialisation of an asset that stands between `<name>/raw` and `<name>/prepared`.

    `prepared_rows(data_set, images_from=...)` then prepares these images and no others.

    Args:
        context: of the asset, which depends on `<name>/raw`.
        data_set: a data set of images.
        files: those of `open_images(...).files` that are to be prepared.

    Returns:
        A materialisation whose data version is a digest of the files.

    Raises:
        dg.Failure: `<name>/raw` was never materialised, or no file is left.
        StoreError: the inventory cannot be written.

    Examples:
        ```python
        @dg.asset(key=["photos", "reviewed"], deps=[photos.key("raw")])
        def reviewed(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            images = open_images(context, photos)
            return hand_on_images(context, photos, [file for file in images.files if file.path not in REJECTED])
        ```
    """
    listed, kept = open_images(context, data_set), tuple(sorted(files, key=lambda file: file.path))
    if not kept:
        raise dg.Failure(f"none of the {len(listed.files)} images of {data_set.name} is left", allow_retries=False)
    images = listed if kept == listed.files else replace(listed, files=kept, digest=digest_of(kept, listed.classes))
    with open_resources(context, ["storage"]) as resources:
        inventory = save_inventory(inventories_of(data_set, resources["storage"]), images)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(images.digest),
        metadata={
            "images": len(kept),
            "left_out": len(listed.files) - len(kept),
            "classes": list(images.classes),
            "source": str(upstream(context, data_set.key("raw")).get("source", "")),
            "digest": images.digest,
            "inventory": inventory,
        },
    )
