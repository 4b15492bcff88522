"""botocore's description of S3, cut down to what a reader needs and kept in the user's cache folder.

Making a client takes longer than opening a cached data set, and most of that is parsing 3 MB of JSON about 400 services
and 100 operations. The part of it that reads objects is 400 kB. The first process of an installed botocore writes it
to a file; the others read it from there. Any doubt about the file leads to the whole description. A file that another
user could have written is not read: the description says which hosts requests are sent to.
"""

import functools
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from smalti.storage.schemes import load_extra

OPERATIONS = ("GetObject", "HeadObject", "HeadBucket", "CreateSession")
"""Operations of a reader; the last two are botocore's own requests, about redirects and directory buckets."""
_MODELS = ("service-2", "endpoint-rule-set-1")
_DATA = ("endpoints", "partitions", "sdk-default-configuration")
_SERVICES = ("s3", "sts", "sso", "portal.sso", "oidc")
"""Services whose hosts are kept: S3, and those that botocore gets credentials from; of these the models are not."""
_FORMAT = 2
_MAX_UNUSED_SECONDS = 30 * 86400.0  # of descriptions that belong to other installations


@functools.cache
def reader_models() -> Any:
    """Return a botocore loader for clients that read objects; made once for each process."""
    loaders = load_extra("botocore.loaders")
    whole = loaders.create_loader()
    customized = any(os.path.isdir(path) for path in whole.search_paths if path != whole.BUILTIN_DATA_PATH)  # noqa: PTH112
    if customized or (os.environ.get("AWS_DATA_PATH")):
        return whole  # descriptions of the user's own take precedence over the built-in ones
    try:
        path = cache_file(whole)
    except OSError:  # a botocore that was packed or cut down
        return whole
    return loader_of(description(whole, path), whole)


def cache_file(whole: Any) -> Path:
    """Return the file of the description that belongs to the installed botocore."""
    import platformdirs

    source = os.stat(os.path.join(whole.BUILTIN_DATA_PATH, "endpoints.json"))  # noqa: PTH116, PTH118
    facts = (_FORMAT, load_extra("botocore").__version__, source.st_size, source.st_mtime_ns, OPERATIONS)
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("smalti", appauthor=False)) / "clients" / f"s3-{name}.json"


def description(whole: Any, path: Path) -> Mapping[str, Any]:
    """Return the description from the file, or cut it out of the whole one and write the file. Best effort."""
    with suppress(OSError, ValueError):
        found = _read_own(path)
        if found[:64] == hashlib.sha256(found[64:]).hexdigest().encode():
            kept: Mapping[str, Any] = json.loads(found[64:])
            return kept
    made = cut(whole)
    data = json.dumps(made).encode()
    if path.is_absolute():  # it is not where the user has no home folder
        with suppress(OSError):
            _write(path, hashlib.sha256(data).hexdigest().encode() + data)
    return made


def _read_own(path: Path) -> bytes:
    """Return the content of a file that only this user, or the superuser, can have written.

    Raises:
        OSError: There is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(descriptor)
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path} can be written by another user")
        return file.read()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        part.write_bytes(data)
        part.chmod(0o600)
        part.replace(path)
    for other in path.parent.glob("s3-*.json"):
        if other != path and time.time() - other.stat().st_mtime > _MAX_UNUSED_SECONDS:
            other.unlink()


def cut(whole: Any) -> dict[str, Any]:
    """Return the description: every value that a client which reads objects asks a loader for."""
    found = {name: whole.load_data(name) for name in _DATA if _has(whole, name)}
    found |= {f"s3/{name}": whole.load_service_model("s3", name) for name in _MODELS}
    model = dict(found["s3/service-2"])
    model["operations"] = {name: model["operations"][name] for name in OPERATIONS}
    model["shapes"] = _reachable(model["operations"], model["shapes"])
    found["s3/service-2"] = model
    partitions = found["endpoints"]["partitions"]
    found["endpoints"] = found["endpoints"] | {
        "partitions": [
            part | {"services": {name: facts for name, facts in part["services"].items() if name in _SERVICES}}
            for part in partitions
        ]
    }
    return found


def loader_of(found: Mapping[str, Any], whole: Any) -> Any:
    """Return a loader that answers from the description, and from the whole one what the description lacks."""
    base: Any = type(whole)

    class ReaderLoader(base):  # type: ignore[misc]
        """botocore's loader over a description that was parsed before."""

        def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
            kept = found.get(f"{service_name}/{type_name}")
            return whole.load_service_model(service_name, type_name, api_version) if kept is None else kept

        def load_data_with_path(self, name: str) -> Any:
            kept = found.get(name)
            return whole.load_data_with_path(name) if kept is None else (kept, whole.BUILTIN_DATA_PATH)

    return ReaderLoader()


def _has(whole: Any, name: str) -> bool:
    try:
        whole.load_data(name)
    except load_extra("botocore.exceptions").DataNotFoundError:  # a release of botocore without it
        return False
    return True


def _reachable(operations: Any, shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes that these operations refer to, directly or through others."""
    found: dict[str, Any] = {}
    left: list[Any] = [operations]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            name = value.get("shape")
            if isinstance(name, str) and name not in found:
                found[name] = shapes[name]
                left.append(shapes[name])
            left += value.values()
        elif isinstance(value, list):
            left += value
    return found
