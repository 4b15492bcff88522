"""The datasets of WebVid: videos stored in the shards, or as files of their own beside them.

A video that is a file is fetched when its sample is read, and stays in `extra_local`; `StreamingOutsideDTWebVid`, whose
videos MosaicML fetches in the thread that fetches shards, does the same. Workers of the loader read ahead.
"""

from pathlib import Path
from typing import Any

from smalti.compat.paths import serve
from smalti.compat.streaming.base.dataset import StreamingDataset, with_defaults, with_signature
from smalti.compat.streaming.base.storage.download import CloudDownloader
from smalti.storage.store import check_key

__all__ = ["StreamingInsideWebVid", "StreamingOutsideDTWebVid", "StreamingOutsideGIWebVid"]


class StreamingInsideWebVid(StreamingDataset):
    """A dataset whose shards contain the videos."""

    def get_item(self, idx: int) -> Any:  # type: ignore[override]  # MosaicML's
        """Return the sample of this number."""
        return super().get_item(idx)


class StreamingOutsideGIWebVid(StreamingDataset):
    """A dataset whose shards contain paths of videos; `content` of a sample is the file.

    Args:
        extra_local: Folder of the fetched videos.
        extra_remote: Folder or URL of all videos. Without both, samples have no `content`.
        arguments: Arguments of `StreamingDataset`.
    """

    @with_signature
    def __init__(self, *, extra_local: str | None = None, extra_remote: str | None = None, **arguments: Any) -> None:
        super().__init__(**with_defaults(arguments))
        self.download_timeout = arguments.get("download_timeout", 60)
        self.extra_local = extra_local
        self.extra_remote = extra_remote
        self._extra_downloader = CloudDownloader.get(extra_remote)

    def get_item(self, idx: int) -> Any:  # type: ignore[override]  # MosaicML's
        """Return the sample of this number, with its video.

        Raises:
            StoreError: The sample's path leads out of the folder of videos, or the video cannot be fetched.
        """
        sample = super().get_item(idx)
        if self.extra_local and self.extra_remote:
            key = check_key(sample["content_path"])
            file = Path(self.extra_local) / key
            self._extra_downloader.download(f"{self.extra_remote.rstrip('/')}/{key}", str(file), self.download_timeout)
            sample["content"] = file.read_bytes()
        return sample


class StreamingOutsideDTWebVid(StreamingOutsideGIWebVid):
    """The same as `StreamingOutsideGIWebVid`."""


serve(__name__, "webvid")
