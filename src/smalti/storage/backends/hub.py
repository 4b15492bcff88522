"""Repositories on the Hugging Face Hub, read only: `hf://datasets/<owner>/<name>[@<revision>]/<folder>`.

Addresses and tokens come from huggingface_hub; requests go through `smalti.storage.backends.web`. The library's own
file system lists a whole folder to find the size of one file, caches listings forever, cannot be interrupted, and sends
requests to huggingface.co even if HF_ENDPOINT names another server.

Writes are refused. Each object would be a commit: the Hub allows about a hundred an hour, a shard set has thousands of
shards, and its readers would see every intermediate state. `hf upload` makes one commit of a whole folder.
"""

import functools
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from smalti.errors import StoreError
from smalti.storage.backends import web
from smalti.storage.schemes import Address, bucket_address, detect, load_extra

KINDS = {"datasets": "dataset", "spaces": "space"}
"""Kind of repository by the first part of an address; any other first part is the owner of a model."""


def parse_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address hf://datasets/owner/name[@revision]/folder; pure.

    Raises:
        StoreError: it names no repository.
    """
    address = bucket_address(scheme, host, prefix, options)
    split_address(address.root)
    return address


def option_names() -> set[str]:
    """Return the names of all options."""
    return web.option_names() | {"token", "endpoint"}


def make(options: dict[str, Any]) -> Any:
    """Make a file system for the Hub, or for the server in HF_ENDPOINT."""
    load_extra("huggingface_hub")
    return _class()(
        token=options.pop("token", None),
        endpoint=options.pop("endpoint", None) or detect("HF_ENDPOINT"),
        **web.settings(options),
    )


def server_of(root: str, options: Mapping[str, Any]) -> str:  # noqa: ARG001 -- the interface of all schemes
    """Return the address of the Hub, or of the server that replaces it."""
    return str(options.get("endpoint") or detect("HF_ENDPOINT") or "https://huggingface.co")


def split_address(path: str) -> tuple[str, str, str, str]:
    """Return kind, repository, revision and the path within it. Pure.

    Raises:
        StoreError: the address names no repository.
    """
    first, _, rest = path.partition("/")
    kind = KINDS.get(first)
    parts = (rest if kind else path).split("/", 2)
    if len(parts) < 2 or not all(parts[:2]):
        raise StoreError(f"hf://{path}: expected hf://datasets/<owner>/<name>[@<revision>]/<folder>")
    name, _, revision = parts[1].partition("@")
    return kind or "model", f"{parts[0]}/{name}", unquote(revision) or "main", parts[2] if len(parts) > 2 else ""


@functools.cache
def _class() -> Any:
    hub = load_extra("huggingface_hub")
    base: Any = web.web_class()

    class HubFileSystem(base):  # type: ignore[misc]
        """The files of repositories, by their addresses on the web."""

        protocol = "hf"

        def __init__(self, token: Any, endpoint: str | None, **options: Any) -> None:
            super().__init__(**options)
            self._token = token
            self._endpoint = (endpoint or "https://huggingface.co").rstrip("/")

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(path).removeprefix("hf://")

        def _address(self, url: str) -> str:
            kind, repository, revision, path = split_address(url)
            return str(hub.hf_hub_url(repository, path, repo_type=kind, revision=revision, endpoint=self._endpoint))

        def _login(self) -> dict[str, str]:
            # For every request: a token may have been saved since. False: anonymous although there is a token.
            token = self._token if isinstance(self._token, str | bool) else hub.get_token()
            token = hub.get_token() if token is True else token
            return {"Authorization": f"Bearer {token}"} if token else {}

        async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:  # noqa: ARG002 -- fsspec's
            raise _refusal(path)

        async def _put_file(self, lpath: str, rpath: str, **_: Any) -> None:  # noqa: ARG002 -- fsspec's
            raise _refusal(rpath)

        async def _rm_file(self, path: str, **_: Any) -> None:
            raise _refusal(path)

        async def _find(self, path: str, **_: Any) -> Any:
            kind, repository, revision, folder = split_address(path)
            root = path[: len(path) - len(folder)].rstrip("/")
            below = f"/{quote(folder)}" if folder else ""
            page = f"{self._endpoint}/api/{kind}s/{repository}/tree/{quote(revision, safe='')}{below}?recursive=true"
            found: dict[str, dict[str, Any]] = {}
            while page:
                # The next page may be on another server, which must not get the login.
                is_own = web.is_same_server(self._endpoint, page)
                async with await self._request("get", page, {}, is_own=is_own) as reply:
                    reply.raise_for_status()
                    for entry in await reply.json():
                        if entry["type"] == "file":
                            described = {"size": entry["size"], "type": "file", "ETag": entry["oid"]}
                            found[f"{root}/{entry['path']}"] = described
                    page = str(reply.links["next"]["url"]) if "next" in reply.links else ""
            return found

    return HubFileSystem


def _refusal(path: str) -> StoreError:
    kind, repository, _, _ = split_address(path)
    return StoreError(
        f"hf://{path}: hf:// is read only here: one object at a time would be thousands of commits, more than the Hub "
        "allows, and readers would see a set that is half there; write the set to a folder, and store that in one "
        f"commit: hf upload {repository} <folder> --repo-type {kind}",
        url=f"hf://{path}",
    )
