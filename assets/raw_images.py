"""The first stage: which images there are. Names, sizes and a handful of files to show; nothing is decoded in full."""

from typing import Any

import dagster as dg
from pydantic import Field

from assets.automation import keeping_another
from assets.inventory import load_inventory, save_inventory
from assets.lineage import facts_of, latest, upstream
from assets.rendering import gallery, image_teaser, table
from assets.sources import address_of, drawn_flowers, image_source
from resources.storage import StorageResource
from smalti.errors import StoreNotFound
from smalti.spark import ImageFolder, describe_archive, is_archive, list_images
from smalti.storage import open_store
from smalti.storage.redact import redact

_SHOWN_CLASSES = 10
_SHOWN_PER_CLASS = 8


class RawImagesConfig(dg.Config):
    """Where the images come from."""

    source: str = Field(
        default="",
        description="Folder (path, s3://, gs://, abfs://, dbfs:/Volumes/…) with one sub-folder per class, or "
        "an archive of one (path or URL of a .tgz, .tar or .zip). Empty: flowers of five classes are drawn.",
    )
    images_per_class: int = Field(default=160, ge=2, le=100_000, description="Of drawn flowers.")
    seed: int = Field(default=0, ge=0, description="Of drawn flowers: another seed is another set.")

    @property
    def described(self) -> str:
        """Return the source as a text without secrets; equal for configurations that read the same place."""
        if not self.source:
            return f"drawn flowers ({self.images_per_class} of each class, seed {self.seed})"
        address = address_of(self.source).rstrip("/")
        return describe_archive(address) if is_archive(address) else redact(address)


@dg.asset(group_name="images", kinds={"jpeg"})
def raw_images(
    context: dg.AssetExecutionContext, config: RawImagesConfig, storage: StorageResource
) -> dg.MaterializeResult[Any]:
    """The images to learn from, one folder per class: an inventory of names, sizes and modification marks."""
    if config.source:
        source = image_source(storage, config.source)
    else:
        context.log.info("drawing %d flowers of each class, unless they are there already", config.images_per_class)
        source = drawn_flowers(storage, per_class=config.images_per_class, seed=config.seed)
    folder = list_images(source, storage_options=storage.options_for(source))
    elsewhere = describe_automation(context.instance, config.described)
    if elsewhere:
        context.log.warning(elsewhere)
    context.log.info("%d images of %d classes in %s", len(folder.files), len(folder.classes), folder.source)
    news = describe_changes(_last_time(context, storage), folder)
    context.log.info(news)
    examples = _examples(folder)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(folder.digest),
        metadata={
            "samples": dg.MetadataValue.md(image_teaser([images[0] for images in examples.values()])),
            "gallery": dg.MetadataValue.md(gallery(examples)),
            "images": len(folder.files),
            "since the last time": news,
            "classes": table([{"class": name, "images": count} for name, count in folder.counts.items()]),
            "folder": folder.source,
            "source": config.described,
            **({"automation": elsewhere} if elsewhere else {}),
            "digest": folder.digest,
            "inventory": save_inventory(storage, folder),
            "dagster/size_bytes": folder.num_bytes,
        },
    )


def _last_time(context: dg.AssetExecutionContext, storage: StorageResource) -> ImageFolder | None:
    """The inventory of the materialisation before this one, if it is there."""
    event = latest(context.instance, "raw_images")
    inventory = facts_of(event).get("inventory") if event is not None else None  # none if it was reported by hand
    try:
        return load_inventory(storage, inventory) if inventory is not None else None
    except StoreNotFound:
        return None


def describe_automation(instance: dg.DagsterInstance, source: str) -> str:
    """Say which schedules and sensors keep another source than the one that is read now; empty if none does."""
    kept = keeping_another(instance, source)
    if not kept:
        return ""
    which = "; ".join(f"{name} keeps {other}" for name, other in kept.items())
    return f"automation does not follow this run to {source}: {which}. To change that, switch it off and on again"


def describe_changes(before: ImageFolder | None, now: ImageFolder) -> str:
    """How many files came, changed and went, in a sentence."""
    if before is None:
        return "read for the first time"
    if before.source != now.source:
        return f"another folder than the last time, which was {before.source}"
    if before.digest == now.digest:
        return "nothing changed"
    old, new = ({file.path: (file.num_bytes, file.modified) for file in each.files} for each in (before, now))
    changed = sum(new[path] != mark for path, mark in old.items() if path in new)
    return f"{len(new.keys() - old.keys())} new, {changed} changed, {len(old.keys() - new.keys())} gone"


def _examples(folder: ImageFolder) -> dict[str, list[bytes]]:
    """The first few files of the first few classes."""
    store = open_store(folder.source, folder.storage_options)
    examples: dict[str, list[bytes]] = {name: [] for name in folder.classes[:_SHOWN_CLASSES]}
    for file in folder.files:
        images = examples.get(folder.classes[file.label])
        if images is not None and len(images) < _SHOWN_PER_CLASS:
            images.append(store.get(file.path))
    return examples


@dg.asset_check(asset=raw_images, description="Every class has at least two images: one to learn from, one to test on.")
def every_class_can_be_split(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> dg.AssetCheckResult:
    """A warning, because a set may well have a class that is too small to matter."""
    counts = load_inventory(storage, upstream(context, "raw_images")["inventory"]).counts
    small = {name: count for name, count in counts.items() if count < 2}
    return dg.AssetCheckResult(
        passed=not small, severity=dg.AssetCheckSeverity.WARN, metadata={"classes with one image": sorted(small)}
    )
