"""Run requests for the partitions of a source that changed since they were read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import dagster as dg

from assets.declaration import Declaration
from assets.sources.images import images_config
from assets.sources.inventory import inventory_key
from assets.sources.partitions import join_partitions, list_all_partitions, read_before
from resources.storage import StorageResource
from smalti.sources.image_folder import ImageFolder

# Dagster's tags of a run that makes several partitions.
_FIRST_TAG = "dagster/asset_partition_range_start"
_LAST_TAG = "dagster/asset_partition_range_end"


@dataclass(frozen=True)
class Look:
    """The partitions of a source at one moment."""

    found: Mapping[str, ImageFolder]
    """Inventories of those that have images, by key."""
    changed: tuple[str, ...]
    """Keys of those that are not as they were read: new, changed and emptied ones."""
    digest: str
    """Digest of all images together; empty if there are none."""


def look_at_partitions(instance: dg.DagsterInstance, declared: Declaration, storage: StorageResource) -> Look:
    """Return what the declared source of images holds now, and which partitions a run should read.

    Folders whose name is no window of time, or is one before the first or in the future, are left out.
    """
    address = images_config(declared)().address
    found = list_all_partitions(address, storage)
    if declared.partitions is not None and declared.partitions.start is not None:
        windows = set(_definition(declared).get_partition_keys(dynamic_partitions_store=instance))
        found = {key: folder for key, folder in found.items() if key in windows}
    before = read_before(instance, declared, storage)
    now = {key: inventory_key(folder) for key, folder in found.items()}
    changed = [key for key in sorted({*now, *before}) if now.get(key, "") != before.get(key, "")]
    digest = join_partitions(address, found, storage).digest if found else ""
    return Look(found, tuple(changed), digest)


def request_partitions(
    instance: dg.DagsterInstance,
    declared: Declaration,
    keys: Iterable[str],
    *,
    run_key: str,
    tags: Mapping[str, str],
) -> tuple[list[dg.RunRequest], list[dg.AddDynamicPartitionsRequest]]:
    """Return one request for each unbroken range of partitions, and one that adds those that Dagster does not know."""
    definition, wanted = _definition(declared), set(keys)
    known = list(definition.get_partition_keys(dynamic_partitions_store=instance))
    new = sorted(wanted - set(known))
    added = []
    if isinstance(definition, dg.DynamicPartitionsDefinition) and new:
        added = [definition.build_add_request(new)]
    ranges = _ranges([*known, *new], wanted)
    requests = [
        dg.RunRequest(
            run_key=f"{run_key}:{first}:{last}",
            tags={**tags, _FIRST_TAG: first, _LAST_TAG: last},
        )
        for first, last in ranges
    ]
    return requests, added


def _ranges(ordered: Sequence[str], wanted: set[str]) -> list[tuple[str, str]]:
    """Return first and last of each unbroken run of wanted keys."""
    found = []
    for is_wanted, group in groupby(ordered, key=wanted.__contains__):
        keys = list(group)
        if is_wanted:
            found.append((keys[0], keys[-1]))
    return found


def _definition(declared: Declaration) -> dg.PartitionsDefinition[str]:
    definition = declared.partitions_definition
    if definition is None:
        raise ValueError(f"data set {declared.name} declares no partitions")
    return definition
