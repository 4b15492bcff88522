"""What is fetched: a shard, its files, and the bytes and seconds that it takes. Reads nothing."""

from dataclasses import dataclass

from smalti.cache.options import CacheOptions
from smalti.format import FileInfo, ShardInfo
from smalti.storage.deadline import most_seconds


@dataclass(frozen=True)
class Wanted:
    """One shard, with its name for messages."""

    number: int
    """Its id in the cache."""
    info: ShardInfo
    what: str
    """Such as "shard 17 (train/.../shard.00017.mds) of s3://b/set, version digest 1a2b3c"."""

    def files(self) -> tuple["WantedFile", ...]:
        """Its files: data, and meta for a text shard."""
        pairs = zip(self.info.raw_files, self.info.stored_files, (self.info.zip, self.info.zip_meta), strict=False)
        return tuple(
            WantedFile(raw, stored, zipped, self.info.compression, self.what if raw is self.info.raw else self._meta())
            for raw, stored, zipped in pairs
        )

    def _meta(self) -> str:
        return f"meta file {self.info.stored_files[-1].basename} of {self.what}"


@dataclass(frozen=True)
class WantedFile:
    """One file of a shard."""

    raw: FileInfo
    stored: FileInfo
    zip: FileInfo | None
    compression: str | None
    what: str

    def num_bytes_kept(self, *, keep_zip: bool) -> int:
        """Bytes that it takes here."""
        return self.raw.num_bytes + (self.zip.num_bytes if self.zip is not None and keep_zip else 0)

    @property
    def num_bytes_needed(self) -> int:
        """Bytes that it takes while it is fetched."""
        return self.raw.num_bytes + (self.zip.num_bytes if self.zip is not None else 0)


def most_seconds_for(info: ShardInfo, options: CacheOptions) -> float:
    """Return the seconds within which a shard is here, or an error is raised."""
    return most_seconds(options.download_timeout, sum(file.num_bytes for file in info.stored_files))


def num_bytes_held(info: ShardInfo, options: CacheOptions) -> int:
    """Bytes that a shard's copies take."""
    return sum(file.num_bytes_kept(keep_zip=options.keep_zip) for file in Wanted(0, info, "").files())


def num_bytes_fetched(info: ShardInfo) -> int:
    """Return the bytes that a shard takes while it is fetched."""
    return sum(file.num_bytes_needed for file in Wanted(0, info, "").files())
