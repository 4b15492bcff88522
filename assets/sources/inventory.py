"""The inventory of a folder of images, kept as a file, so that later stages read what `raw` saw and not more."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from assets.declaration import Declaration
from assets.places import Place, place_of
from resources.storage import StorageResource
from smalti.spark import ImageFile, ImageFolder

_SCHEMA = pa.schema(
    [("path", pa.string()), ("label", pa.int32()), ("num_bytes", pa.int64()), ("modified", pa.string())]
)


def save_inventory(place: Place, folder: ImageFolder) -> str:
    """Write the inventory under its digest and return that key; credentials are not in it."""
    facts = {"source": folder.source, "classes": list(folder.classes), "digest": folder.digest}
    rows = [{"path": f.path, "label": f.label, "num_bytes": f.num_bytes, "modified": f.modified} for f in folder.files]
    table = pa.Table.from_pylist(rows, _SCHEMA.with_metadata({"smalti": json.dumps(facts)}))
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
        files=tuple(ImageFile(**row) for row in table.to_pylist()),
        classes=tuple(facts["classes"]),
        digest=facts["digest"],
        storage_options=storage.options_for(facts["source"]),
    )


def inventories_of(declared: Declaration, storage: StorageResource) -> Place:
    """Return the place of the inventories of a data set."""
    return place_of(declared, storage, "inventories")
