"""What a user chooses about local copies, and what is found out about the machine."""

import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CacheOptions:
    """How remote shards are kept here."""

    local: str | None = None
    """Folder of the copies; default: the user's own cache folder. Each data set gets a folder by its digest in it;
    without checksums, by its address too."""
    download_retry: int = 2
    """Attempts for one shard in all (not further ones), at least 1."""
    download_timeout: float = 60.0
    """Seconds with less than 64 KiB of progress after which fetching a shard fails; in all, with every attempt, pause
    and wait for another process, it may take this long and the time of its stored size at 64 KiB/s."""
    keep_zip: bool = False
    """Whether the compressed file is kept beside the unpacked one."""

    def __post_init__(self) -> None:
        if self.download_retry < 1:
            raise ValueError(
                f"`download_retry` is {self.download_retry}; it counts all attempts, so at least 1 is needed"
            )
        if not self.download_timeout > 0:
            raise ValueError(f"`download_timeout` is {self.download_timeout} s; expected a positive number of seconds")


def detect_cache_folder() -> Path:
    """The cache folder of this user on this system (`~/.cache/smalti`, `~/Library/Caches/smalti`)."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("smalti", appauthor=False))


def detect_open_limit() -> int:
    """How many shards may be mapped at once: a quarter of the files this process may open, 8 to 512."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 512
    return max(8, min(512, soft // 4))
