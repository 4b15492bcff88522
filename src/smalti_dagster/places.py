"""Places of the data of a declared data set, which no other data set uses."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg

from smalti.errors import StoreNotFound, VersionNotFound
from smalti.spark.prepared.table import PreparedTable, load_prepared
from smalti.storage import Store, open_store
from smalti_dagster.declaration import Declaration
from smalti_dagster.resources.storage import StorageResource

REFERENCE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Place:
    """An address, and how to reach it."""

    url: str
    storage_options: Mapping[str, Any]
    """Holds secrets: never log it."""

    def store(self) -> Store:
        """Return the library's store at this place."""
        return open_store(self.url, self.storage_options)

    def arguments(self) -> dict[str, Any]:
        """Return the place as the arguments of functions about prepared images."""
        return {"path": self.url, "storage_options": self.storage_options}


def place_of(declared: Declaration, storage: StorageResource, part: str) -> Place:
    """Return a place of a data set below the storage root."""
    return Place(storage.url(declared.place(part)), storage.options())


def shards_of(declared: Declaration, storage: StorageResource) -> Place:
    """Return the place of the shard set: the declared target, or one below the storage root."""
    if target := expand(declared.shards.target):
        return Place(target, storage.options_for(target))
    return place_of(declared, storage, "shards")


def prepared_of(declared: Declaration, storage: StorageResource) -> Place:
    """Return the place of the tables of prepared images and their Parquet parts."""
    return place_of(declared, storage, "prepared")


def prepared_table(declared: Declaration, facts: Mapping[str, Any], storage: StorageResource) -> PreparedTable:
    """Return the table that a materialisation names.

    Raises:
        dg.Failure: it is gone.
    """
    version, place = facts.get("prepared_version") or facts.get("version"), prepared_of(declared, storage)
    name = str(facts.get("table") or facts["digest"])
    for number in (version, None):  # a vacuum publishes the newest content again, under a new number
        with suppress(StoreNotFound, VersionNotFound):
            found = load_prepared(version=number, **place.arguments())
            if found.name == name:
                return found
    raise dg.Failure(
        f"{place.url} has no version with the digest {name[:16]} any more: materialise "
        f"{declared.key('prepared').to_user_string()} again",
        allow_retries=False,
    )


def expand(text: str) -> str:
    """Return a declared text with `${NAME}` replaced by variables of the environment.

    Raises:
        ValueError: a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        if (found := os.environ.get(match[1])) is None:
            raise ValueError(f"the declaration refers to the environment variable {match[1]}, which is not set")
        return found

    return REFERENCE.sub(value, text)
