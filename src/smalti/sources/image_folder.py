"""The inventory of a folder of images with one sub-folder per class: names, labels and sizes. Reads no image.

`held_out` chooses the files for validation; `fixed_split` decides each file by itself. A source that takes minutes to
list is listed in several parts by `list_further`. The state of such a listing is a small value that JSON can hold. It
contains a digest of the objects so far, which depends on neither the sizes of the parts nor the kind of store: the
inventory of a whole folder has the same.
"""

import hashlib
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from smalti.errors import SmaltiError, SourceWarning, StoreNotFound
from smalti.redaction import hide_options, redact, redact_address
from smalti.sources.archive import is_archive
from smalti.sources.listing import OTHER_KIND, LeftOut, list_source
from smalti.storage import ObjectInfo, Store, open_store
from smalti.storage.store import ListingPage
from smalti.texts import printable

_OF_SYSTEMS = frozenset({
    "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir", "$recycle.bin",
    "system volume information", "lost+found",
})  # fmt: skip
"""Files and folders, in lower case, that file managers and file systems leave in folders of images."""
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
"""Endings, in lower case, of the formats that can be read."""
_NO_IMAGES = (
    ".txt", ".md", ".rst", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".html", ".htm", ".yaml", ".yml", ".toml", ".ini",
    ".cfg", ".log", ".pdf", ".py", ".ipynb", ".sh", ".mat", ".npy", ".npz", ".pkl", ".db", ".sqlite", ".url", ".lnk",
)  # fmt: skip
"""Endings of files that lie beside images and are none."""
OUTSIDE = "outside of the class folders"
SPLITS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""Names of folders, in lower case and without an ending such as `_set`, and the splits that they mean."""
_OF_SETS = re.compile(r"[ _-]?(set|data|images|imgs|split)$")
TRAIN = "train"
VALIDATION = "validation"
TEST = "test"


@dataclass(frozen=True)
class ImageFile:
    """One file of the inventory."""

    path: str
    """`<class>/<file>`, relative to the source."""
    label: int
    """Index of its class in `ImageFolder.classes`."""
    num_bytes: int
    """Size when it was listed, bytes."""
    modified: str
    """ETag or modification time when it was listed; changes with the content."""


@dataclass(frozen=True)
class ImageFolder:
    """The images of a source at one moment."""

    source: str
    """Address of the folder, for `open_store`."""
    files: tuple[ImageFile, ...]
    """All images, sorted by path."""
    classes: tuple[str, ...]
    """Names of the classes in code-point order; a label is an index into them."""
    digest: str
    """SHA-256 of the paths, sizes and modification marks of all files."""
    storage_options: Mapping[str, Any] | None = None
    """Options of `open_store` for reading the images."""
    left_out: LeftOut = field(default_factory=LeftOut, compare=False)
    """Files that are not images, by the reason; links that lead nowhere, and other entries that are no files."""

    def __post_init__(self) -> None:
        hide_options(self)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.num_bytes for file in self.files)

    @property
    def encoding(self) -> str:
        """Encoding of the files as they are: `jpeg` or `png` if all are, by their names, else `bytes`."""
        paths = [file.path.lower() for file in self.files]
        if all(path.endswith((".jpg", ".jpeg")) for path in paths):
            return "jpeg"
        return "png" if all(path.endswith(".png") for path in paths) else "bytes"

    @property
    def counts(self) -> dict[str, int]:
        """Number of files per class."""
        counts = dict.fromkeys(self.classes, 0)
        for file in self.files:
            counts[self.classes[file.label]] += 1
        return counts


def list_images(source: str, *, storage_options: Mapping[str, Any] | None = None) -> ImageFolder:
    """Return the inventory of a folder that has one sub-folder per class; unpack an archive first by `fetch_archive`.

    Files below a class folder count at any depth. Symbolic links to files and folders are followed. Left out, and
    counted in `left_out`, are hidden files and those of systems, files whose names show that they are no images, those
    outside of the class folders, and what `smalti.sources.listing` leaves out of every source.

    Args:
        source: Folder or URL with a sub-folder for each class.
        storage_options: Options of the store's client, such as credentials.

    Raises:
        StoreNotFound: there is no such folder, or it is empty.
        StoreError: the source cannot be listed; `StoreAuthError` when credentials are missing or refused, or a folder
            in it may not be listed.
        SmaltiError: there are files, but no class folders.

    Warns:
        SourceWarning: images or links are left out, or the first folders seem to be splits.

    Examples:
        >>> folder = list_images("photos")
        >>> folder.classes, folder.counts
        (('cat', 'dog'), {'cat': 6, 'dog': 6})
    """
    folder = inventory_of(source, storage_options)
    shown = redact_address(folder.source)
    folder.left_out.warn(shown)
    if all(map(split_named, folder.classes)) and all(file.path.count("/") > 1 for file in folder.files):
        warnings.warn(
            f"{shown}: the folders {', '.join(folder.classes)} seem to be splits, and become the classes; to use the "
            f"folders in them as classes, list each one by itself, such as {shown.rstrip('/')}/{folder.classes[0]}",
            SourceWarning,
            stacklevel=2,
        )
    return folder


def inventory_of(source: str, storage_options: Mapping[str, Any] | None = None) -> ImageFolder:
    """Return the inventory of a folder without a warning; raises as `list_images` does."""
    if is_archive(source):
        raise SmaltiError(
            f"{redact_address(source)} is an archive; give the folder of its images, which "
            "`smalti.spark.fetch_archive(source, Path(folder))` unpacks and returns",
            source=redact_address(source),
        )
    store = open_store(source, storage_options)
    objects, left_out = list_source(store, is_hidden_name)
    images = _images_in(objects, left_out)
    if not images:
        raise _no_images_error(store, objects, left_out)
    if len({_class_of(item.key) for item in images}) == 1 and all(item.key.count("/") > 1 for item in images):
        shown, top, inner = redact(store.url), _class_of(images[0].key), min(item.key.split("/")[1] for item in images)
        raise SmaltiError(
            f"{shown}: all images lie deeper, in {top}/{inner} and so on; the folder with the class folders seems to "
            f"be {shown.rstrip('/')}/{top}: give that as the source",
            source=shown,
        )
    address = store.url if store.local_path("any") is not None else source  # absolute, for workers
    return _folder(address, ((item.key, _class_of(item.key), item) for item in images), storage_options, left_out)


def split_named(name: str) -> str | None:
    """Return the split that a folder's name means, such as "validation" for `Valid` or `val_set`; None for others."""
    return SPLITS.get(_OF_SETS.sub("", name.lower()))


def list_image_partitions(
    source: str, key: str, *, storage_options: Mapping[str, Any] | None = None
) -> dict[str, ImageFolder]:
    """Return the inventories of the folders of a partitioned source, by the key of the partition; lists it once.

    Args:
        source: address with the text `key` in it, in place of the key of a partition: `s3://lake/day={partition}`.
        key: that text.
        storage_options: credentials and endpoint of the source's store.

    Raises:
        StoreError: the source cannot be listed; `StoreAuthError` when credentials are missing or refused.
    """
    common, pattern = split_at_partition(source, key)
    begin, _, after = pattern.partition(key)
    name = re.compile(f"{re.escape(begin)}([^/]+){re.escape(after)}/(.+)")
    by_value: dict[str, list[ObjectInfo]] = {}
    objects, left_out = list_source(open_store(common, storage_options), is_hidden_name)
    for item in objects:
        if (match := name.fullmatch(item.key)) is not None:
            by_value.setdefault(match[1], []).append(replace(item, key=match[2]))
    found = {}
    for value, listed in sorted(by_value.items()):
        if images := [(item.key, _class_of(item.key), item) for item in _images_in(listed, left_out)]:
            found[value] = _folder(f"{common}/{pattern.replace(key, value)}", images, storage_options, left_out)
    left_out.warn(redact_address(common))
    return found


def split_at_partition(source: str, key: str) -> tuple[str, str]:
    """Return the address of the folder above all partitions, and the path of a partition below it, with `key` in it."""
    before, _, after = source.rstrip("/").partition(key)
    common, _, begin = before.rpartition("/")
    return common, f"{begin}{key}{after}"


def _images_in(objects: Iterable[ObjectInfo], left_out: LeftOut) -> list[ObjectInfo]:
    """Return the objects below class folders that may be images, sorted by key; the others are counted as left out."""
    images = []
    for item in objects:
        if is_image(item.key):
            images.append(item)
        else:
            is_outside = "/" not in item.key and item.key.lower().endswith(IMAGE_ENDINGS)
            left_out.add(OUTSIDE if is_outside else OTHER_KIND, item.key)
    return sorted(images, key=lambda item: item.key)


def _folder(
    source: str,
    images: Iterable[tuple[str, str, ObjectInfo | ImageFile]],
    storage_options: Mapping[str, Any] | None,
    left_out: LeftOut,
) -> ImageFolder:
    """Return the inventory of these images, each with its path, the name of its class, and its facts."""
    ordered = sorted(images, key=itemgetter(0))
    numbers = {name: label for label, name in enumerate(sorted({name for _, name, _ in ordered}))}
    files = tuple(ImageFile(path, numbers[name], facts.num_bytes, facts.modified) for path, name, facts in ordered)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.num_bytes}\0{file.modified}\n".encode())
    return ImageFolder(source, files, tuple(numbers), digest.hexdigest(), storage_options, left_out)


def _class_of(key: str) -> str:
    return key.split("/", 1)[0]


def join_folders(source: str, folders: Mapping[str, ImageFolder]) -> ImageFolder:
    """Return one inventory of several folders that lie below a common one, such as one folder per day.

    Its classes are those of all folders together, and each path begins with the folder's own.

    Args:
        source: address of the common folder.
        folders: inventories by path below `source`.

    Raises:
        StoreNotFound: there are no images in any of them.
    """
    if not any(folder.files for folder in folders.values()):
        raise StoreNotFound(f"{redact(source)}: no images in any of {len(folders)} folders below it")
    moved = (
        (f"{below}/{file.path}", folder.classes[file.label], file)
        for below, folder in folders.items()
        for file in folder.files
    )
    options = next(iter(folders.values())).storage_options
    return _folder(source, moved, options, LeftOut.joined(folder.left_out for folder in folders.values()))


def split_folder(joint: ImageFolder, folders: Mapping[str, str]) -> dict[str, ImageFolder]:
    """Return again the inventories of some of the folders that `join_folders` has joined, by key.

    Args:
        joint: the result of `join_folders`.
        folders: paths below its source by key; all of the same depth.
    """
    depth = next((path.count("/") + 1 for path in folders.values()), 0)
    keys = {path: key for key, path in folders.items()}
    found: dict[str, list[tuple[str, str, ImageFile]]] = {key: [] for key in folders}
    for file in joint.files:
        parts = file.path.split("/", depth)
        if (key := keys.get("/".join(parts[:depth]))) is not None:
            found[key].append((parts[depth], joint.classes[file.label], file))
    return {
        key: _folder(f"{joint.source}/{folders[key]}", files, joint.storage_options, LeftOut())
        for key, files in found.items()
    }


def is_image(key: str) -> bool:
    """Return whether a file counts as an image: it is below a class folder, not hidden, and not of another kind."""
    return "/" in key and not any(map(is_hidden_name, key.split("/"))) and not key.lower().endswith(_NO_IMAGES)


def is_hidden_name(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or one that systems leave in folders."""
    return name.startswith(".") or name.lower() in _OF_SYSTEMS


def _no_images_error(store: Store, objects: Sequence[ObjectInfo], left_out: LeftOut) -> SmaltiError:
    shown = redact(store.url)
    expected = "expected one sub-folder per class, such as daisy/1.jpg and roses/2.jpg"
    if objects:
        return SmaltiError(
            f"{shown}: {expected}; found {len(objects)} files ({printable(objects[0].key)}, ...) and no sub-folder "
            f"with images: sort the images into folders named by their class",
            source=shown,
        )
    if left_out.counts:
        return StoreNotFound(f"{shown}: {expected}; left out: {left_out}", source=shown)
    probe = store.local_path("any")
    if probe is not None and not probe.parent.exists():
        return StoreNotFound(f"{shown}: there is no such folder; {expected}", source=shown)
    if probe is not None and not probe.parent.is_dir():
        return SmaltiError(f"{shown} is a file; {expected} in a folder", source=shown)
    return StoreNotFound(f"{shown}: the folder is empty or does not exist; {expected}", source=shown)


def held_out(paths: Iterable[str], *, fraction: float, seed: int) -> frozenset[str]:
    """Return the paths of one class that are held out for validation.

    Paths are sorted by a hash of seed and path, and the first `fraction` of them, 0 to 1, is held out; rounded, but of
    two or more files at least one is held out and one stays. The choice is independent of the order of listing and of
    the machine. When files are added, only as many others change sides as needed to keep the share.
    """
    ranked = sorted(paths, key=lambda path: place_key(path, seed))
    if fraction <= 0 or len(ranked) < 2:
        return frozenset()
    count = min(max(1, round(fraction * len(ranked))), len(ranked) - 1)
    return frozenset(ranked[:count])


def fixed_split(path: str, *, validation: float, test: float, seed: int) -> str:
    """Return the split of a file, decided by a hash of seed and path alone: other files never change it.

    Shares of the whole, 0 to 1, are met on average only.
    """
    place = int.from_bytes(place_key(path, seed), "big") / (1 << 128)
    if place < validation:
        return VALIDATION
    return TEST if place < validation + test else TRAIN


def split_files(folder: ImageFolder, *, validation: float, test: float, fixed: bool, seed: int) -> dict[str, str]:
    """Return the split of each file, by its path: by `fixed_split` if `fixed` or with a test split, else `held_out`."""
    if fixed or test:
        return {file.path: fixed_split(file.path, validation=validation, test=test, seed=seed) for file in folder.files}
    by_class: dict[int, list[str]] = {label: [] for label in range(len(folder.classes))}
    for file in folder.files:
        by_class[file.label].append(file.path)
    splits = dict.fromkeys((file.path for file in folder.files), TRAIN)
    for paths in by_class.values():
        splits.update(dict.fromkeys(held_out(paths, fraction=validation, seed=seed), VALIDATION))
    return splits


def place_key(path: str, seed: int) -> bytes:
    """Return a hash by which to sort paths in a fixed, well-mixed order."""
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16, key=str(seed).encode()).digest()


# ------------------------------------------------------------------ listings in several parts


@dataclass(frozen=True)
class PartialListing:
    """The part of a folder that was listed so far, in the order of keys."""

    after: str = ""
    """Position from which to continue: objects with greater keys are still missing."""
    digest: str = ""
    """Digest of the names, sizes and modification marks of the images so far; empty before the first one."""
    count: int = 0
    """Number of images so far."""
    is_complete: bool = False
    """True if the listing has come to its end."""


def list_further(
    store: Store, listing: PartialListing, *, seconds: float, clock: Callable[[], float] = time.monotonic
) -> PartialListing:
    """Continue a listing until its end, but begin no further page after `seconds`; at least one page is listed.

    Objects that are added or removed behind the position meanwhile are not noticed: compare two complete listings.

    Raises:
        StoreError: a page cannot be listed; the listing that was given is still valid.
    """
    begin = clock()
    while not listing.is_complete:
        page = _page(store, listing.after)
        images = [(item.key, item) for item in page.objects if is_image(item.key)]
        digest = extend_digest(listing.digest, images)
        listing = PartialListing(page.after, digest, listing.count + len(images), page.is_last)
        if clock() - begin >= seconds:
            break
    return listing


def _page(store: Store, after: str) -> ListingPage:
    """Return the next objects; all that remain of a local folder, whose links are followed as in an inventory."""
    if store.local_path("any") is None:
        return store.list_page(after=after)
    objects = [item for item in list_source(store, is_hidden_name)[0] if item.key > after]
    return ListingPage(objects, objects[-1].key if objects else after, is_last=True)


def extend_digest(digest: str, objects: Iterable[tuple[str, ObjectInfo | ImageFile]]) -> str:
    """Return the digest of some objects and those before them; equal however the objects are divided.

    Args:
        digest: of the objects before; empty for none.
        objects: path and facts of each, sorted by path.
    """
    value = bytes.fromhex(digest)
    for path, item in objects:
        line = f"{path}\0{item.num_bytes}\0{item.modified}\n".encode("utf-8", "surrogateescape")
        value = hashlib.sha256(value + line).digest()
    return value.hex()
