"""Sources of images: what a run may choose about them, and how their inventory is made."""

import dagster as dg
from pydantic import Field

from assets.configuration import with_defaults
from assets.declaration import MANIFESTS, Declaration
from assets.places import expand
from assets.sources.folders import address_of, drawn_flowers, image_folder
from assets.sources.manifest import list_manifest
from resources.storage import StorageResource
from smalti.spark import ImageFolder, describe_archive, is_archive, list_images
from smalti.storage.redact import redact


class ImagesConfig(dg.Config):
    """The source of the images."""

    source: str = Field(
        default="",
        description="Folder (path, s3://, gs://, abfs://, dbfs:/Volumes/…) with one sub-folder per class, an archive "
        "of one (path or URL of a .tgz, .tar or .zip), or a manifest (.csv, .parquet). Empty: flowers are drawn.",
    )
    images_per_class: int = Field(default=160, ge=2, le=100_000, description="Of drawn flowers.")
    seed: int = Field(default=0, ge=0, description="Of drawn flowers: another seed is another set.")

    @property
    def address(self) -> str:
        """Return the address of the source, with variables of the environment filled in; it may hold a secret."""
        return address_of(expand(self.source)).rstrip("/")

    @property
    def described(self) -> str:
        """Return the source as a text without secrets; equal for configurations that read the same place."""
        if not self.source:
            return f"drawn flowers ({self.images_per_class} of each class, seed {self.seed})"
        address = self.address
        return describe_archive(address) if is_archive(address) else redact(address)


def images_config(declared: Declaration) -> type[ImagesConfig]:
    """Return the configuration with the values of a declaration."""
    drawn = declared.source.drawn
    return with_defaults(ImagesConfig, source=declared.source.text, **(drawn.model_dump() if drawn is not None else {}))


def is_manifest(address: str) -> bool:
    """Return whether an address names a manifest."""
    return address.endswith(MANIFESTS)


def find_images(declared: Declaration, config: ImagesConfig, storage: StorageResource) -> ImageFolder:
    """Return the inventory of the source; an archive is fetched and flowers are drawn first, unless they are there.

    Raises:
        SmaltiError: the source is not there, or not what was expected.
    """
    if not config.source:
        folder = drawn_flowers(declared, storage, per_class=config.images_per_class, seed=config.seed)
    elif is_manifest(config.address):
        return list_again(declared, config.address, storage)
    else:
        folder = image_folder(declared, storage, config.address)
    return list_again(declared, folder, storage)


def list_again(declared: Declaration, address: str, storage: StorageResource) -> ImageFolder:
    """Return the inventory of a folder or of a manifest's images as they are now."""
    options = storage.options_for(address)
    if not is_manifest(address):
        return list_images(address, storage_options=options)
    columns = {"path_column": declared.source.path_column, "label_column": declared.source.label_column}
    return list_manifest(address, storage_options=options, **columns)
