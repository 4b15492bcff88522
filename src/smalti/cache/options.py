"""The user's choices about fetching shards and keeping local copies, and the limits detected on this machine."""

import resource
from dataclasses import dataclass, fields, replace
from pathlib import Path

from smalti.attributes import whole_number

_MAX_OPEN_SHARDS = 512


@dataclass(frozen=True)
class CacheOptions:
    """Options for fetching, verifying and keeping remote shards on this machine.

    `StreamingDataset` takes each field but `local` as an argument, and `Stream` has each as a field, None for the
    dataset's choice.
    """

    local: str | None = None
    """Folder of the copies; None for the user's cache folder. Each data set gets a subfolder named by its digest, and
    without checksums by its address too."""
    download_retry: int = 2
    """Attempts for one shard in all (not further ones), at least 1."""
    download_timeout: float = 60.0
    """Seconds with less than 64 KiB of progress after which fetching a shard fails; in all, with every attempt, pause
    and wait for another process, it may take this long and the time of its stored size at 64 KiB/s."""
    validate_hash: str | None = None
    """Hash that the index must have for every file; None for whichever it has. All hashes in the index are checked."""
    keep_zip: bool = False
    """Keep the compressed file beside the unpacked one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "download_retry", whole_number("download_retry", self.download_retry, 1))
        if not self.download_timeout > 0:
            raise ValueError(f"`download_timeout` is {self.download_timeout} s; expected a positive number of seconds")

    def overridden_by(self, choices: object) -> "CacheOptions":
        """Return these options, replaced by the attributes of `choices` that bear a field's name and are not None."""
        chosen = {field.name: getattr(choices, field.name, None) for field in fields(self)}
        return replace(self, **{name: value for name, value in chosen.items() if value is not None})


def detect_cache_folder() -> Path:
    """Return the cache folder of this user on this system (`~/.cache/smalti`, `~/Library/Caches/smalti`)."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("smalti", appauthor=False))


def detect_open_limit() -> int:
    """Return how many shards may be mapped at once: a quarter of the files this process may open, 8 to 512."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_OPEN_SHARDS
    return max(8, min(_MAX_OPEN_SHARDS, soft // 4))
