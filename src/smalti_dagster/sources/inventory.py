"""The inventory of a folder of images, kept as a file, so that later stages read what `raw` saw and not more."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.spark import ImageFile, ImageFolder
from smalti_dagster.declaration import Declaration
from smalti_dagster.places import Place, place_of
from smalti_dagster.resources.storage import StorageResource

_SCHEMA = pa.schema(
    [("path", pa.string()), ("label", pa.int32()), ("num_bytes", pa.int64()), ("modified", pa.string())]
)


def save_inventory(place: Place, folder: ImageFolder) -> str:
    """Write the inventory under its digest and return that key; credentials are not in it."""
    facts = {"source": folder.source, "classes": list(folder.classes), "digest": folder.digest}
    columns = [[getattr(file, name) for file in folder.files] for name in _SCHEMA.names]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    table = pa.table(arrays, _SCHEMA.with_metadata({"smalti": json.dumps(facts)}))
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    key = inventory_key(folder)
    place.store().put(key, out.getvalue())
    return key


def inventory_key(folder: ImageFolder) -> str:
    """Return the name of a folder's inventory."""
    return f"{folder.digest}.parquet"


def load_inventory(declared: Declaration, storage: StorageResource, key: str) -> ImageFolder:
    """Return what `save_inventory` wrote, with the credentials for its source.

    Raises:
        StoreNotFound: the inventory is gone; materialise the asset `raw` again.
    """
    table = pq.read_table(io.BytesIO(inventories_of(declared, storage).store().get(key)))
    facts = json.loads(table.schema.metadata[b"smalti"])
    return ImageFolder(
        source=facts["source"],
        files=tuple(map(ImageFile, *(table.column(name).to_pylist() for name in _SCHEMA.names))),
        classes=tuple(facts["classes"]),
        digest=facts["digest"],
        storage_options=storage.options_for(facts["source"]),
    )


def load_counts(declared: Declaration, storage: StorageResource, key: str) -> dict[str, int]:
    """Return the number of files of each class in what `save_inventory` wrote.

    Raises:
        StoreNotFound: the inventory is gone; materialise the asset `raw` again.
    """
    found = pq.read_table(io.BytesIO(inventories_of(declared, storage).store().get(key)), columns=["label"])
    classes = json.loads(found.schema.metadata[b"smalti"])["classes"]
    counts = {each["values"]: each["counts"] for each in found.column("label").value_counts().to_pylist()}
    return {name: counts.get(label, 0) for label, name in enumerate(classes)}


def inventories_of(declared: Declaration, storage: StorageResource) -> Place:
    """Return the place of the inventories of a data set."""
    return place_of(declared, storage, "inventories")
