"""MosaicML's helper functions: parsing of arguments, waits and retries, and `merge_index` over `smalti.catalog`.

`merge_index` differs from MosaicML's in four deliberate points: parts at any depth get the right names, every shard
must be in the store with its declared size, a local root is never deleted, and the index is replaced in one step.
"""

import functools
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast, overload

from smalti.catalog import merge
from smalti.catalog.manifest import INDEX
from smalti.compat.streaming.base.constant import SHM_TO_CLEAN
from smalti.compat.streaming.errors import MergeError
from smalti.errors import CatalogError, StoreError, StoreNotFound
from smalti.format import ShardInfo, emit_index, parse_index
from smalti.storage import LocalStore, Store, open_store
from smalti.storage.retry import jitter

logger = logging.getLogger(__name__.removeprefix("smalti.compat."))
CallableT = TypeVar("CallableT", bound=Callable[..., Any])
Url = str | tuple[str, str]
Faults = type[Exception] | Sequence[type[Exception]]

_BYTE_UNITS = {f"{prefix}b": 1024 ** (n + 1) for n, prefix in enumerate("kmgtpezy")}
_NUMBER_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}

__all__ = [
    "get_list_arg",
    "wait_for_file_to_exist",
    "bytes_to_int",
    "number_abbrev_to_int",
    "clean_stale_shared_memory",
    "get_import_exception_message",
    "merge_index",
    "retry",
]


def get_list_arg(text: str) -> list[str]:
    """Return the parts of a command-line argument between commas; none of an empty one."""
    return text.split(",") if text else []


def wait_for_file_to_exist(filename: str, poll_interval: float, timeout: float, err_msg: str) -> None:
    """Wait until there is a file of this name, and one `poll_interval` more for its writer.

    Args:
        filename: Path of the file.
        poll_interval: Polling interval, seconds.
        timeout: Longest wait, seconds.
        err_msg: Beginning of the error's message.

    Raises:
        RuntimeError: the file is not there in time.
    """
    begin = time.monotonic()
    while True:
        time.sleep(poll_interval)
        if os.path.exists(filename):  # noqa: PTH110 - file names may be bytes or descriptors, as in MosaicML
            time.sleep(poll_interval)
            return
        waited = time.monotonic() - begin
        if waited > timeout:
            raise RuntimeError(f"{err_msg}{timeout:.3f} < {waited:.3f} secs. The file {filename} is not there.")


def bytes_to_int(bytes_str: int | str) -> int:
    """Return a number of bytes, given as a number or as text such as "100kb" (units b, kb, ... yb, of 1024).

    Raises:
        ValueError: the text is neither.
        OverflowError: the number is infinite.
    """
    if isinstance(bytes_str, int | float):
        return int(bytes_str)
    return _scaled(bytes_str, _BYTE_UNITS, plain_unit="b")


def number_abbrev_to_int(abbrev_str: int | str) -> int:
    """Return a number, given as one or as text such as "1.5k" (units k, m, b, t: thousand to trillion).

    Raises:
        ValueError: the text is neither.
        OverflowError: the number is infinite.
    """
    if isinstance(abbrev_str, int | float):
        return int(abbrev_str)
    return _scaled(abbrev_str, _NUMBER_UNITS)


def _scaled(text: str, units: Mapping[str, int], plain_unit: str = "") -> int:
    """Return the number in `text` times its unit; without one of `units` the number must be whole."""
    lowered = text.strip().lower()
    known = [plain_unit, *units] if plain_unit else [*units]
    message = f"Unsupported value/suffix {lowered}. Supported suffix are {known}."
    unit = next((suffix for suffix in units if lowered.endswith(suffix)), None)
    try:
        if unit is not None:
            return int(float(lowered.removesuffix(unit)) * units[unit])
        if lowered.removesuffix(plain_unit).isdecimal():
            return int(lowered.removesuffix(plain_unit))
    except OverflowError as error:
        raise OverflowError(f"{message} Expected a finite number.") from error
    except ValueError:
        pass  # raised below, as for every other text
    raise ValueError(message)


def clean_stale_shared_memory() -> None:
    """Make the local folders that datasets of this process use free for further ones, and remove its shared memory.

    Nothing of another process is removed: its shared memory ends with it.
    """
    # What was not imported has registered nothing.
    opening = sys.modules.get("smalti.compat.streaming.base.opening")
    if opening is not None:
        opening.forget_folders()
    memory = sys.modules.get("smalti.compat.streaming.base.shared")
    if memory is not None:
        memory.unlink_own(SHM_TO_CLEAN)


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """Return the message for a package that is not installed, and the extra that installs it."""
    return (
        f"Streaming was installed without {package_name} support. To use {package_name} related packages with "
        f"Streaming, run `pip install 'smalti[{extra_deps}]'`."
    )


# ------------------------------------------------------------------ merge_index


def merge_index(*args: Any, **kwargs: Any) -> None:
    """Write the index file of a data set whose parts have index files of their own.

        merge_index(out, keep_local, download_timeout)
        merge_index(index_file_urls, out, keep_local, download_timeout)

    The first form merges all parts below `out`, sorted by their names as MosaicML sorts them ("10" before "9"); the
    second those of a list, in its order.

    Args:
        *args: The arguments by position.
        **kwargs: The arguments by name:
            index_file_urls: list of addresses, or of pairs (local, remote), of which the local file is read if it
            exists;
            out: the root of the data set, a folder or URL, or a pair (local, remote), of which the remote one counts;
            keep_local (True): with a pair, whether the local folder remains; it is removed after all shards were found
            in the remote one. A root that is a local folder always remains;
            download_timeout (60): longest time in seconds between the arrivals of two index files.

    Raises:
        ValueError: the arguments are of neither form, or an index file cannot be trusted.
        FileNotFoundError: the local file of a pair is not there, and its remote address is empty.
        RuntimeError: an index file or a shard is not there, or the root holds versions that Smalti published.
    """
    first = args[0] if args else kwargs.get("index_file_urls", kwargs.get("out"))
    is_list = isinstance(first, list)
    if not (isinstance(first, list | str | tuple | os.PathLike) and 1 <= len(args) + len(kwargs) - is_list <= 3):
        raise ValueError(
            f"Invalid arguments to merge_index: {args}, {kwargs}; expected (out, keep_local, download_timeout) or "
            "(index_file_urls, out, keep_local, download_timeout), with a list of addresses."
        )
    try:
        if is_list:
            _merge_index(*args, **kwargs)
        else:
            _merge_index(None, *args, **kwargs)
    except (CatalogError, StoreError) as error:
        key = str(error.facts.get("key", ""))
        is_of_a_part = key.endswith(f"/{INDEX}") or (isinstance(error, StoreNotFound) and key == INDEX)
        begin = f"Failed to download {INDEX}: " if is_of_a_part else ""
        raise MergeError(f"{begin}{error.message}", **error.facts) from error


def _merge_index(
    index_file_urls: Sequence[Url] | None,
    out: Url,
    keep_local: Any = True,  # noqa: FBT002 - MosaicML's signature
    download_timeout: int = 60,
) -> None:
    """Merge the index files of a list, or all below the root; see `merge_index`."""
    if index_file_urls is None and not out:
        logger.warning("No MDS dataset folder specified, no index merged")
        return
    if index_file_urls is not None and not (index_file_urls and out):
        logger.warning("Need to specify both `index_file_urls` and `out`. No index merged")
        return
    local, root = _roots(out)
    roots = [root] if local is None else [root, local]
    if index_file_urls is None:
        keys = sorted(info.key for info in root.list() if info.key.endswith(f"/{INDEX}"))
        if not keys:
            logger.warning("%s: there is no %s in any folder below it. No index merged", root.url, INDEX)
            return
        urls = [root.locate(key) for key in keys]
    else:
        urls = list(dict.fromkeys(_readable_address(url, roots) for url in index_file_urls))
        if not all(_is_below(url, roots) for url in urls):
            _merge_from_elsewhere(urls, roots if keep_local else [root], download_timeout)
            return
    # This checks all shards.
    merge.merge_index(
        urls, root if local is None else (local, root), bool(keep_local), download_timeout=download_timeout
    )
    if local is None or keep_local or not local.root.is_dir():
        return
    if not (isinstance(root, LocalStore) and root.root.resolve().is_relative_to(local.root.resolve())):
        shutil.rmtree(local.root)


def _roots(out: Url) -> tuple[LocalStore | None, Store]:
    """Return the local folder of a pair, else None, and the root of the data set."""
    if isinstance(out, tuple) and len(out) != 2:
        raise ValueError(f"`out` must be one address or a pair (local, remote), found {out!r}.")
    try:
        return (LocalStore(out[0]), open_store(out[1])) if isinstance(out, tuple) else (None, open_store(out))
    except StoreError as error:
        raise ValueError(error.message) from error


def _readable_address(url: Url, roots: Sequence[Store]) -> str:
    """Return the local address of a pair if there is such a file, else the remote one; rather one below the roots.

    Raises:
        FileNotFoundError: the local file is not there, and the remote address is empty.
    """
    local, remote = (url, url) if isinstance(url, str) else url
    local, remote = (one.strip().rstrip("/") for one in (local, remote))
    is_there = os.path.exists(local)  # noqa: PTH110 - it may be a URL
    if is_there and (_is_below(local, roots) or not _is_below(remote, roots)):
        return local
    if not remote:
        raise FileNotFoundError(
            f"Check data availability! local index {local} is not accessible. The remote index {remote!r} of the pair "
            "does not have a valid url format: expected the address of a file."
        )
    return remote


def _folder_and_name(url: str) -> tuple[str, str]:
    folder, slash, name = url.rpartition("/")
    return folder or slash or ".", name


def _is_below(url: str, roots: Sequence[Store]) -> bool:
    folder = open_store(_folder_and_name(url)[0]).url
    return any(f"{folder}/".startswith(f"{root.url.rstrip('/')}/") for root in roots)


def _merge_from_elsewhere(urls: Sequence[str], roots: Sequence[Store], download_timeout: float) -> None:
    """Merge index files that lie outside the root: each part is expected in a folder of its own name there."""
    shards: list[ShardInfo] = []
    for url in urls:
        folder, name = _folder_and_name(url)
        store = open_store(folder, {"request_timeout": download_timeout})
        found, _ = parse_index(store.get(name), where=store.locate(name))
        shards += [shard.with_prefix(PurePosixPath(store.url).name) for shard in found]
    for root in roots:
        root.put(INDEX, emit_index(shards))


@overload
def retry(
    exc_class: Faults = ...,
    clean_up_fn: Callable[[], None] | None = ...,
    num_attempts: int = ...,
    initial_backoff: float = ...,
    max_jitter: float = ...,
) -> Callable[[CallableT], CallableT]: ...


@overload
def retry(exc_class: CallableT) -> CallableT: ...


def retry(
    exc_class: CallableT | Faults = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> CallableT | Callable[[CallableT], CallableT]:
    """Decorate a function so that it is called again after an error; with arguments, or without parentheses.

    Args:
        exc_class: The class of error after which it is called again, or several.
        clean_up_fn: Called after every failed attempt.
        num_attempts: Attempts in all, from 1.
        initial_backoff: Pause before the second attempt, seconds; doubles each time.
        max_jitter: Random time that is added to every pause, at most, seconds.

    Raises:
        ValueError: `num_attempts` is less than 1.
    """
    if num_attempts < 1:
        raise ValueError(f"num_attempts must be at-least 1, found {num_attempts}.")
    if isinstance(exc_class, Sequence):
        kinds = tuple(exc_class)
    elif isinstance(exc_class, type) and issubclass(exc_class, Exception):
        kinds = (exc_class,)
    else:  # the function itself: the decorator is used without parentheses
        decorated = retry(Exception, None, num_attempts, initial_backoff, max_jitter)
        return decorated(cast("CallableT", exc_class))

    def decorate(func: CallableT) -> CallableT:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            attempt = 0
            while True:
                try:
                    return func(*args, **kwargs)
                except kinds as error:
                    attempt += 1
                    logger.debug("Attempt %d/%d failed with: %s", attempt, num_attempts, error)
                    if clean_up_fn is not None:
                        clean_up_fn()
                    if attempt == num_attempts:
                        raise
                time.sleep(initial_backoff * 2 ** (attempt - 1) + jitter(0.0, max_jitter))

        return cast("CallableT", call)

    return decorate
