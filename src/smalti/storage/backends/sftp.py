"""SFTP through sshfs, with ranged reads, atomic writes, and a check of the server's key.

sshfs itself reads whole files whatever the range, writes in place, and trusts every server.
"""

import errno
import functools
import importlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from smalti.errors import StoreAuthError, StoreError
from smalti.storage.options import parameters_of
from smalti.storage.retry import CONNECT_SECONDS
from smalti.storage.schemes import Address, detect, load_extra
from smalti.storage.store import (
    MAX_OBJECT_BYTES,
    UnfinishedUpload,
    is_temporary,
    temporary_name,
    temporary_path,
    unfinished_uploads_in,
)

BLOCK_BYTES = 1 << 18
"""Size of one read request."""


def parse_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address sftp://user@host:port/absolute/path.

    Raises:
        StoreError: the port is not a number.
    """
    user, at, name = host.rpartition("@")
    name, colon, port = name.partition(":")
    if colon and not port.isdigit():
        raise StoreError(f"{scheme}://{host}: the port is not a number", url=f"{scheme}://{host}")
    options.setdefault("host", name)
    if at:
        options.setdefault("username", user)
    if colon:
        options.setdefault("port", int(port))
    return Address(scheme, f"/{prefix}".rstrip("/"), f"{scheme}://{host}/{prefix}".rstrip("/"), options)


def server_of(root: str, options: Mapping[str, Any]) -> str:  # noqa: ARG001 -- the interface of all schemes
    """Return the server's address. Pure."""
    return f"sftp://{options['host']}:{options.get('port', 22)}"


def option_names() -> set[str]:
    """Return the names of all options of sshfs and asyncssh."""
    load_extra("sshfs")
    connection = importlib.import_module("asyncssh").SSHClientConnectionOptions
    return parameters_of(_class(), connection.prepare) | {"key_filename"}


def make(options: dict[str, Any]) -> Any:
    """Make a file system for the server in the options.

    Raises:
        StoreAuthError: the named key file or list of known hosts does not exist.
    """
    key = options.pop("key_filename", None) or detect("COMPOSER_SFTP_KEY_FILE")
    if key and "client_keys" not in options:
        options["client_keys"] = [_file(key, "the private key (COMPOSER_SFTP_KEY_FILE)")]
    hosts = options.pop("known_hosts", None) or detect("COMPOSER_SFTP_KNOWN_HOSTS_FILE")
    # (): asyncssh's default, ~/.ssh/known_hosts. None would accept any server.
    options["known_hosts"] = _file(hosts, "the list of known hosts (COMPOSER_SFTP_KNOWN_HOSTS_FILE)") if hosts else ()
    defaults = {"connect_timeout": CONNECT_SECONDS, "keepalive_interval": 15, "skip_instance_cache": True}
    return _class()(**(defaults | options))


def _file(path: Any, what: str) -> str:
    found = Path(str(path)).expanduser()
    if not found.is_file():
        raise StoreAuthError(f"{what} is not there: {found}", path=str(found))
    return str(found)


@functools.cache
def _class() -> Any:
    sshfs = load_extra("sshfs")

    class WholeFileSystem(sshfs.SSHFileSystem):  # type: ignore[misc, name-defined]
        """sshfs with ranged reads, atomic writes, and listings that raise instead of hiding faults."""

        async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
            async with self._pool.get() as channel:
                return await _read(channel, path, start or 0, end)

        async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            async with self._pool.get() as channel, _temporary_file(channel, path) as temp:
                async with channel.open(temp, "xb") as file:
                    await file.write(value)
                await _rename(channel, temp, path, exclusive=mode == "create")

        async def _put_file(self, lpath: str, rpath: str, **_: Any) -> None:
            async with self._pool.get() as channel, _temporary_file(channel, rpath) as temp:
                await channel.put(lpath, temp)
                await _rename(channel, temp, rpath, exclusive=False)

        async def _find(self, path: str, **_: Any) -> dict[str, Any]:
            return {entry["name"]: entry for entry in await self._files(path) if not is_temporary(entry["name"])}

        async def _unfinished_uploads(self, path: str) -> list[UnfinishedUpload]:
            """Return the temporary files below a folder, with whole paths for keys."""
            return unfinished_uploads_in(await self._files(path))

        async def _abort_upload(self, path: str, upload_id: str) -> None:
            async with self._pool.get() as channel:
                await channel.remove(temporary_path(path, upload_id))

        async def _files(self, path: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            pending = [path.rstrip("/")]
            while pending:
                entries = await self._ls(pending.pop())
                pending += [entry["name"] for entry in entries if entry["type"] == "directory"]
                found += [entry for entry in entries if entry["type"] != "directory"]
            return found

    return WholeFileSystem


def _errors() -> Any:
    return importlib.import_module("asyncssh.sftp")


async def _read(channel: Any, path: str, begin: int, end: int | None) -> bytes:
    try:
        async with channel.open(path, "rb", block_size=BLOCK_BYTES) as file:
            return bytes(await file.read(MAX_OBJECT_BYTES if end is None else end - begin, begin))
    except _errors().SFTPError as error:
        # Servers report a folder by various codes.
        if await channel.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path) from error
        raise


@asynccontextmanager
async def _temporary_file(channel: Any, path: str) -> AsyncIterator[str]:
    """Yield an unused path in the folder of `path`, which is made; remove the file there if the block raises."""
    folder, _, name = path.rpartition("/")
    await channel.makedirs(folder, exist_ok=True)
    temp = f"{folder}/{temporary_name(name)}"
    try:
        yield temp
    except BaseException:
        with suppress(_errors().SFTPError, OSError):
            await channel.remove(temp)
        raise


async def _rename(channel: Any, temp: str, path: str, *, exclusive: bool) -> None:
    """Rename a finished file; an exclusive rename raises `FileExistsError` if the target exists."""
    if not exclusive:
        try:
            await channel.posix_rename(temp, path)
        except _errors().SFTPOpUnsupported:
            await channel.rename(temp, path)
        return
    # The protocol's own rename does not replace. A look first would hide from `check_exclusive_puts` a server whose
    # rename replaces all the same.
    try:
        await channel.rename(temp, path)
    except _errors().SFTPError as error:
        if await channel.lexists(path):
            raise FileExistsError(errno.EEXIST, "exists already", path) from error
        raise
