"""MDSReader: the samples of one MDS shard on this machine."""

from typing import Any

from smalti.compat.streaming.base.format.base.reader import FileInfo, JointReader
from smalti.errors import FormatError, SchemaError
from smalti.format import Schema, parse_encoding
from smalti.format.reading.batch import DECODER_ERRORS, read_plan

__all__ = ["MDSReader"]


class MDSReader(JointReader):
    """The samples of an MDS shard, by number.

    Args:
        dirname: as for `JointReader`, like the arguments that are not named here.
        split: as for `JointReader`.
        column_encodings: encoding of each column.
        column_names: name of each column.
        column_sizes: bytes of every value of each column; None where values differ in length.
        compression: as for `JointReader`.
        hashes: as for `JointReader`.
        raw_data: as for `JointReader`.
        samples: as for `JointReader`.
        size_limit: as for `JointReader`.
        zip_data: as for `JointReader`.
    """

    _format = "mds"

    def __init__(  # noqa: PLR0913, PLR0917 - MosaicML's signature
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        column_sizes: list[int | None],
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
    ) -> None:
        super().__init__(dirname, split, compression, hashes, raw_data, samples, size_limit, zip_data)
        self.column_encodings = column_encodings
        self.column_names = column_names
        self.column_sizes = column_sizes

    def validate(self, allow_unsafe_types: bool) -> None:  # noqa: FBT001 - MosaicML's signature
        """Return only if the shard may be read: `pkl` columns run code when they are read.

        Raises:
            ValueError: it has such a column, and `allow_unsafe_types` is False; or an encoding is unknown.
        """
        for name, encoding in zip(self.column_names, self.column_encodings, strict=True):
            parse_encoding(encoding, allow_unsafe_types=True)
            try:
                parse_encoding(encoding, allow_unsafe_types=allow_unsafe_types)
            except SchemaError as error:
                raise ValueError(
                    f"Column {name} contains an unsafe type: {encoding}. To proceed anyway, set "
                    "``allow_unsafe_types=True``: reading it runs code from the data."
                ) from error

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Return the sample that these stored bytes are, column to value.

        Raises:
            ValueError: they are damaged.
        """
        schema = Schema(tuple(self.column_names), tuple(self.column_encodings), tuple(self.column_sizes))
        plan = read_plan(schema, allow_unsafe_types=True)  # `validate` decides whether a shard may be read
        if len(data) < plan.min_bytes:
            raise self._damaged("it is shorter than its columns of fixed size")
        lengths = iter(plan.lengths(data, 0))
        begin, sample = plan.head_bytes, dict[str, Any]()
        for name, _, decode, size in plan.steps:
            end = begin + (next(lengths) if size is None else size)
            try:
                sample[name] = decode(data[begin:end])
            except DECODER_ERRORS as error:
                raise self._damaged(f"column {name!r}: {error}") from error
            begin = end
        if begin != len(data):
            raise self._damaged(f"its columns need {begin} bytes, and it has {len(data)}")
        return sample

    def _damaged(self, reason: str) -> FormatError:
        return FormatError(f"a sample of {self._path(self.raw_data)} is damaged: {reason}")
