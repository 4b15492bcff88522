"""JSONReader: the samples of one JSON shard on this machine."""

from typing import Any

from smalti.compat.streaming.base.format.base.reader import FileInfo, SplitReader

__all__ = ["JSONReader"]


class JSONReader(SplitReader):
    """The samples of a JSON shard, by number.

    Args:
        dirname: as for `SplitReader`, like the arguments that are not named here.
        split: as for `SplitReader`.
        columns: name to encoding of each column.
        compression: as for `SplitReader`.
        hashes: as for `SplitReader`.
        newline: end of each line.
        raw_data: as for `SplitReader`.
        raw_meta: as for `SplitReader`.
        samples: as for `SplitReader`.
        size_limit: as for `SplitReader`.
        zip_data: as for `SplitReader`.
        zip_meta: as for `SplitReader`.
    """

    _format = "json"

    def __init__(  # noqa: PLR0913, PLR0917 - MosaicML's signature
        self,
        dirname: str,
        split: str | None,
        columns: dict[str, str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname, split, compression, hashes, raw_data, raw_meta, samples, size_limit, zip_data, zip_meta
        )
        self.columns = columns
        self.newline = newline

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Return the sample that this line is, column to value.

        Raises:
            ValueError: it is damaged.
        """
        return self._decode_line(data, self.columns, self.newline, None)
