"""Sources of rows whose state is known without Spark, so that nothing is read while it is the same.

These are tables given by their address, and sources whose declaration names a function that returns their version.
"""

import hashlib
import json

from smalti.spark.lineage import TableState, table_state
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.data import FORMS
from smalti_dagster.places import expand
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.functions import function_digest, load_function
from smalti_dagster.sources.rows_config import RowsConfig

UNCHANGED_WHILE = "rows_are_the_same_while"
"""In the metadata of `raw`: digest of the state of the source, which was the same before and after it was read."""


def source_state(declared: Declaration, config: RowsConfig, storage: StorageResource) -> TableState | None:
    """Return the state of the source, and of everything that the declaration says about it; None if only Spark knows.

    Raises:
        StoreError: the folder of the table cannot be listed.
    """
    source, is_declared = declared.source, (config.form, config.source) == (declared.source.form, declared.source.text)
    if source.version is not None and is_declared:
        version, is_certain = load_function(source.version)(), True
        code = function_digest(config.source) if FORMS[config.form].names_function else ""
        if not version:
            return None
        found = f"{version} {code}"
    elif config.form == "table" and source.format is not None:
        address = expand(config.source)
        state = table_state(address, source.format, storage_options=storage.options_for(address))
        found, is_certain = state.digest, state.is_certain
    else:
        return None
    facts = [found, config.form, expand(config.source), declared.digest("source")]
    return TableState(hashlib.sha256(json.dumps(facts).encode()).hexdigest(), is_certain=is_certain)


def certain_state(declared: Declaration, config: RowsConfig, storage: StorageResource) -> str | None:
    """Return a text that is the same at two moments only if the source has the same rows; None if that is not known."""
    state = source_state(declared, config, storage)
    return state.digest if state is not None and state.is_certain else None


def watched_digest(declared: Declaration, config: RowsConfig, storage: StorageResource) -> str | None:
    """Return a digest that is another one when the source has changed, without Spark; None if only Spark knows it."""
    state = source_state(declared, config, storage)
    return state.digest if state is not None else None
