"""Sources in partitions: a run lists its own, and adds what the latest runs have read of all others.

Images lie in one folder per partition, rows have a column with its key. Each materialisation of `raw` says in its
metadata what it has read of its partitions; Dagster knows which of them is the latest of a partition.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import dagster as dg

from smalti.errors import StoreNotFound
from smalti.redaction import redact
from smalti.sources.image_folder import (
    ImageFolder,
    join_folders,
    list_image_partitions,
    split_at_partition,
    split_folder,
)
from smalti.spark import list_images
from smalti.storage import open_store
from smalti_dagster.declaration import PARTITION, Declaration
from smalti_dagster.lineage import facts_of
from smalti_dagster.places import Place
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.inventory import inventories_of, load_inventory, save_inventory
from smalti_dagster.stage import Facts, RunPartitions

PARTITIONS = "partitions"
"""In the metadata of `raw`: name of the file that says what was read of which partition (`ReadPartitions`).

A run makes a materialisation for each of its partitions, all with the same metadata, which has to stay small.
"""

_AT_ONCE = 16  # small objects in flight
_RECORDS = 1000  # that are asked of Dagster at once


@dataclass(frozen=True)
class ReadPartitions:
    """The state of partitions when they were read: names of inventories, or digests of rows; empty without any."""

    own: Mapping[str, str]
    """The partitions of the run, by key."""
    others: Mapping[str, str]
    """The partitions that were read before."""

    def save(self, place: Place) -> str:
        """Put this as a file beside the inventories, and return its name."""
        data = json.dumps({"own": dict(self.own), "others": dict(self.others)}, sort_keys=True).encode()
        name = f"partitions-{hashlib.sha256(data).hexdigest()}.json"
        place.store().put(name, data)
        return name

    @classmethod
    def load(cls, place: Place, name: str) -> "ReadPartitions":
        """Return what `save` has put under this name.

        Raises:
            StoreNotFound: it is gone; materialise `raw` again for all partitions.
        """
        return cls(**json.loads(place.store().get(name)))

    @property
    def all(self) -> dict[str, str]:
        """All partitions that are not empty, by key, in order."""
        return {key: found for key, found in sorted({**self.others, **self.own}.items()) if found}


def read_partitions(
    declared: Declaration,
    address: str,
    partitions: RunPartitions,
    storage: StorageResource,
    *,
    last: Facts | None = None,
) -> tuple[ImageFolder, ReadPartitions]:
    """Return one inventory of all partitions, and the names of those of each.

    The run's own partitions are listed now. The inventories of all others are those that earlier runs have kept: in
    the joint one of the last run, else one by one.

    Args:
        declared: the data set.
        address: of the images, with `{partition}` in it.
        partitions: of the run.
        storage: where the inventories are kept.
        last: facts of the last materialisation of `raw`.

    Raises:
        StoreNotFound: no partition has an image, or the folder above all partitions is not there or empty.
    """
    place = inventories_of(declared, storage)
    found = list_partitions(address, partitions.keys, storage)
    if not any(found.values()):
        _require_source(address, storage)
    own = {key: save_inventory(place, folder) if folder is not None else "" for key, folder in found.items()}
    kept = {key: name for key, name in partitions.others.items() if name}
    joined = _from_joint(declared, address, kept, storage, last or {})
    single = {key: name for key, name in kept.items() if key not in joined}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        loaded = pool.map(lambda name: load_inventory(declared, storage, name), single.values())
        folders = {**joined, **dict(zip(single, loaded, strict=True)), **found}
    return join_partitions(address, folders, storage), ReadPartitions(own, partitions.others)


def _from_joint(
    declared: Declaration, address: str, names: Mapping[str, str], storage: StorageResource, last: Facts
) -> dict[str, ImageFolder]:
    """Return those of the inventories with these names that the last run has joined, by key; it takes two reads."""
    if not names or not last.keys() >= {PARTITIONS, "inventory"}:
        return {}
    try:
        joined = ReadPartitions.load(inventories_of(declared, storage), last[PARTITIONS]).all
        joint = load_inventory(declared, storage, last["inventory"])
    except StoreNotFound:
        return {}
    common, below = split_at_partition(address, PARTITION)
    if joint.source != common:
        return {}
    same = {key: below.replace(PARTITION, key) for key, name in names.items() if joined.get(key) == name}
    return split_folder(joint, same)


def describe_partitions(read: ReadPartitions) -> str:
    """Say what was read of the run's partitions."""
    empty = sum(not name for name in read.own.values())
    return f"read {len(read.own)} partitions, {empty} of them empty; {len(read.others)} others were read before"


def list_partitions(address: str, keys: Iterable[str], storage: StorageResource) -> dict[str, ImageFolder | None]:
    """Return the inventory of each of these partitions as it is now; None for one that has no images."""

    def one(key: str) -> ImageFolder | None:
        folder = address.replace(PARTITION, key)
        try:
            return list_images(folder, storage_options=storage.options_for(folder))
        except StoreNotFound:
            return None

    keys = list(keys)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(keys, pool.map(one, keys), strict=True))


def list_all_partitions(address: str, storage: StorageResource) -> dict[str, ImageFolder]:
    """Return the inventories of all partitions that have images now, by key; lists the source once."""
    return list_image_partitions(address, PARTITION, storage_options=storage.options_for(address))


def _require_source(address: str, storage: StorageResource) -> None:
    """Return only if there is something above the partitions: else a mount is missing, and none of them was emptied.

    Raises:
        StoreNotFound: there is nothing.
    """
    common, _ = split_at_partition(address, PARTITION)
    if next(iter(open_store(common, storage.options_for(common)).list()), None) is None:
        raise StoreNotFound(
            f"{redact(common)}, the folder above all partitions, is empty or does not exist: nothing was changed; "
            "check the address, the mount and the credentials"
        )


def join_partitions(address: str, found: Mapping[str, ImageFolder | None], storage: StorageResource) -> ImageFolder:
    """Return one inventory of these partitions.

    Raises:
        StoreNotFound: none of them has an image.
    """
    common, below = split_at_partition(address, PARTITION)
    folders = {below.replace(PARTITION, key): folder for key, folder in found.items() if folder is not None}
    return replace(join_folders(common, folders), storage_options=storage.options_for(common))


def read_before(
    instance: dg.DagsterInstance, declared: Declaration, storage: StorageResource, *, without: Collection[str] = ()
) -> dict[str, str]:
    """Return what the latest materialisation of each partition of `raw` has read, by key of the partition.

    Partitions that are no more are left out: dynamic ones that were deleted, and windows before the first one.

    Args:
        instance: of Dagster.
        declared: the data set.
        storage: where the files are that say what was read.
        without: partitions that are not asked for.
    """
    definition, raw = declared.partitions_definition, declared.key("raw")
    if definition is None:
        return {}
    latest = instance.get_latest_storage_id_by_partition(raw, dg.DagsterEventType.ASSET_MATERIALIZATION)
    keys = set(definition.get_partition_keys(dynamic_partitions_store=instance)) - set(without)
    wanted = {number: key for key, number in latest.items() if key in keys}
    names: dict[str, set[str]] = {}
    for ids in _batched(sorted(wanted), _RECORDS):
        found = instance.fetch_materializations(dg.AssetRecordsFilter(raw, storage_ids=ids), limit=len(ids))
        for record in found.records:
            name = facts_of(record.event_log_entry).get(PARTITIONS)
            if name is not None:  # one that was reported by hand has none
                names.setdefault(str(name), set()).add(wanted[record.storage_id])
    place = inventories_of(declared, storage)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        files = dict(zip(names, pool.map(lambda name: ReadPartitions.load(place, name), names), strict=True))
    return {key: files[name].own[key] for name, read in names.items() for key in read}


def _batched(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield the values in parts of at most `size`."""
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]
