"""Run requests for the partitions of a source that changed since they were read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from smalti.errors import StoreNotFound
from smalti.sources.image_folder import ImageFolder
from smalti_dagster.declaration import Declaration
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.images import images_config
from smalti_dagster.sources.inventory import inventory_key
from smalti_dagster.sources.partitions import join_partitions, list_all_partitions, read_before

# Dagster's tags of a run that makes several partitions.
_FIRST_TAG = "dagster/asset_partition_range_start"
_LAST_TAG = "dagster/asset_partition_range_end"


@dataclass(frozen=True)
class Look:
    """The partitions of a source at one moment."""

    found: Mapping[str, ImageFolder]
    """Inventories of those that have images, by key."""
    changed: tuple[str, ...]
    """Keys of those that are not as they were read, or that were read and did not get into the shards."""
    digest: str
    """Digest of all images together; empty if there are none."""

    @property
    def versions(self) -> dict[str | None, str]:
        """Data version of each partition: name of its inventory, empty without images."""
        keys = {*self.changed, *self.found}
        return {key: inventory_key(self.found[key]) if key in self.found else "" for key in keys}


def look_at_partitions(instance: dg.DagsterInstance, declared: Declaration, storage: StorageResource) -> Look:
    """Return what the declared source of images holds now, and which partitions a run should read.

    Folders whose name is no window of time, or is one before the first or in the future, are left out.

    Raises:
        StoreNotFound: partitions were read before, and none has images any more: a mount may be missing.
    """
    address = images_config(declared)().address
    found = list_all_partitions(address, storage)
    if declared.partitions is not None and declared.partitions.start is not None:
        windows = set(_definition(declared).get_partition_keys(dynamic_partitions_store=instance))
        found = {key: folder for key, folder in found.items() if key in windows}
    before = read_before(instance, declared, storage)
    if not found and any(before.values()):
        raise StoreNotFound(
            f"{images_config(declared)().described}: no partition has images any more, and nothing is requested: check "
            "the address, the mount and the credentials; if they were removed on purpose, launch the job by hand"
        )
    now = {key: inventory_key(folder) for key, folder in found.items()}
    unheld = _not_in_the_shards(instance, declared)
    changed = [key for key in sorted({*now, *before}) if now.get(key, "") != before.get(key, "") or key in unheld]
    digest = join_partitions(address, found, storage).digest if found else ""
    return Look(found, tuple(changed), digest)


def _not_in_the_shards(instance: dg.DagsterInstance, declared: Declaration) -> set[str]:
    """Return the partitions that were read after the shards were made of them last: the run has failed between."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    read, held = (instance.get_latest_storage_id_by_partition(declared.key(stage), kind) for stage in ("raw", "shards"))
    return {key for key, number in read.items() if held.get(key, 0) < number}


def request_partitions(
    instance: dg.DagsterInstance, declared: Declaration, keys: Iterable[str], request: dg.RunRequest
) -> tuple[list[dg.RunRequest], list[dg.AddDynamicPartitionsRequest]]:
    """Return one request that reads all of these partitions, and one that adds those that Dagster does not know.

    One run, because runs of the same data set at the same time would each know the other's partitions as they were
    before. Partitions between the first and the last one are listed again, which changes nothing.
    """
    wanted, added = set(keys), add_partitions(instance, declared, keys)
    known = _definition(declared).get_partition_keys(dynamic_partitions_store=instance)
    found = [key for key in (*known, *(key for each in added for key in each.partition_keys)) if key in wanted]
    if not found:
        return [], added
    return [dg.RunRequest(run_key=request.run_key, tags={**request.tags, **span_tags(found)})], added


def span_tags(keys: Sequence[str]) -> dict[str, str]:
    """Return the tags of a run that makes several partitions: the first to the last of these."""
    return {_FIRST_TAG: keys[0], _LAST_TAG: keys[-1]}


def add_partitions(
    instance: dg.DagsterInstance, declared: Declaration, keys: Iterable[str]
) -> list[dg.AddDynamicPartitionsRequest]:
    """Return a request that adds those of these partitions that Dagster does not know."""
    definition = _definition(declared)
    if not isinstance(definition, dg.DynamicPartitionsDefinition):
        return []
    new = sorted(set(keys) - set(definition.get_partition_keys(dynamic_partitions_store=instance)))
    return [definition.build_add_request(new)] if new else []


def _definition(declared: Declaration) -> dg.PartitionsDefinition[str]:
    definition = declared.partitions_definition
    if definition is None:
        raise ValueError(f"data set {declared.name} declares no partitions")
    return definition
