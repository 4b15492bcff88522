"""The datasets of WebVid: videos stored in the shards, or as files of their own beside them.

A video that is a file is fetched when its sample is read, and stays in `extra_local`; `StreamingOutsideDTWebVid`, whose
videos MosaicML fetches in the thread that fetches shards, does the same. Workers of the loader read ahead.
"""

import os
import tempfile
from pathlib import Path
from typing import Any, Unpack

from smalti.compat.streaming.base.arguments import DatasetArguments, with_defaults, with_signature
from smalti.compat.streaming.base.dataset import StreamingDataset
from smalti.storage import open_store
from smalti.storage.store import check_key

__all__ = ["StreamingInsideWebVid", "StreamingOutsideDTWebVid", "StreamingOutsideGIWebVid"]


class StreamingInsideWebVid(StreamingDataset):
    """A dataset whose shards contain the videos."""


class StreamingOutsideGIWebVid(StreamingDataset):
    """A dataset whose shards contain paths of videos; `content` of a sample is the file.

    Args:
        extra_local: Folder of the fetched videos.
        extra_remote: Folder or URL of all videos. Without both, samples have no `content`.
        arguments: Arguments of `StreamingDataset`.
    """

    @with_signature
    def __init__(
        self, *, extra_local: str | None = None, extra_remote: str | None = None, **arguments: Unpack[DatasetArguments]
    ) -> None:
        super().__init__(**with_defaults(arguments))
        self.download_timeout = arguments.get("download_timeout", 60)
        self.extra_local = extra_local
        self.extra_remote = extra_remote
        self._videos = open_store(extra_remote) if extra_remote else None

    def get_item(self, idx: int) -> Any:
        """Return the sample of this number, with its video.

        Raises:
            ValueError: The sample's path leads out of the folder of videos.
            StoreError: The video cannot be fetched.
        """
        sample = super().get_item(idx)
        if self.extra_local and self._videos is not None:
            key = check_key(sample["content_path"])
            file = Path(self.extra_local) / key
            if not file.exists():
                self._fetch(key, file)
            sample["content"] = file.read_bytes()
        return sample

    def _fetch(self, key: str, file: Path) -> None:
        """Fetch a video; the file appears at once, so that other workers do not read half of it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", suffix=".part", delete=False) as part:
            try:
                self._videos.fetch(key, part)
            except BaseException:
                Path(part.name).unlink()
                raise
        os.replace(part.name, file)


class StreamingOutsideDTWebVid(StreamingOutsideGIWebVid):
    """The same as `StreamingOutsideGIWebVid`."""
