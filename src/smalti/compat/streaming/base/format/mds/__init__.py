"""MDS shards: their reader and their writer; the encodings of their columns are in `encodings`."""

from typing import Any

from typing_extensions import Unpack

from smalti.compat.paths import serve
from smalti.compat.streaming.base.format.base import JointReader
from smalti.compat.streaming.base.format.base.writer import JointWriter, WriterArguments, with_writer_arguments
from smalti.compat.streaming.base.format.mds.encodings import (
    TableEncoding,
    _encodings,
    get_mds_encoded_size,
    get_mds_encodings,
    is_mds_encoding,
    mds_encode,
)
from smalti.compat.streaming.errors import BadColumn
from smalti.errors import FormatError, SchemaError
from smalti.format import Encoding, Schema, parse_encoding
from smalti.format.encodings.images import Jpeg
from smalti.format.encodings.numbers import STRUCT_CODES, Int, NdArray, Scalar
from smalti.format.encodings.text import Bytes, Str
from smalti.format.layout import encode_config
from smalti.format.reading.batch import DECODER_ERRORS, read_plan
from smalti.format.writing.rows import FastPath, array_encoder, make_fast_encoder

__all__ = ["MDSReader", "MDSWriter"]


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
    _fields = JointReader._fields | {"column_encodings", "column_names", "column_sizes"}
    column_encodings: list[str]
    column_names: list[str]
    column_sizes: list[int | None]

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


class MDSWriter(JointWriter):
    """A writer of MDS shards.

        with MDSWriter(columns={"image": "jpeg", "label": "int"}, out="/data/set") as writer:
            writer.write({"image": data, "label": 3})

    Args:
        columns: Name to encoding.
        **arguments: as for `Writer`.

    Raises:
        TypeError: an encoding is unknown; it is a ValueError too.
    """

    format = "mds"
    extra_bytes_per_sample = 4

    @with_writer_arguments
    def __init__(
        self,
        *,
        columns: dict[str, str],
        **arguments: Unpack[WriterArguments],
    ) -> None:
        for name, encoding in columns.items():
            if not is_mds_encoding(encoding):
                raise BadColumn(
                    f"MDSWriter passed column `{name}` with encoding `{encoding}` is unsupported. Supported encodings "
                    f"are {get_mds_encodings()}"
                )
        super().__init__(
            extra_bytes_per_sample=self.extra_bytes_per_sample,
            **arguments,
        )
        self.columns = columns
        self.column_names: list[str] = sorted(columns)
        self.column_encodings: list[str] = [columns[name] for name in self.column_names]
        self.column_sizes: list[int | None] = list(map(get_mds_encoded_size, self.column_encodings))
        schema = Schema(tuple(self.column_names), tuple(self.column_encodings), tuple(self.column_sizes))
        codecs = tuple(map(writing_codec, self.column_encodings))
        self._encode = make_fast_encoder(schema, codecs, self._encode_slowly, takes_more=True) if columns else None
        self.config_data = encode_config(self.get_config())
        self.extra_bytes_per_shard = 4 + 4 + len(self.config_data)
        self._reset_cache()

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """Return the stored bytes of a sample; errors are those of `write`."""
        if self._encode is None:
            raise BadColumn("`columns` is empty, and a sample needs at least one column.")
        return self._encode(sample)

    def _encode_slowly(self, sample: Any) -> bytes:
        """Encode a sample that the fast path declines, or raise the error of a value."""
        lengths = b""
        parts = []
        for name, encoding, size in zip(self.column_names, self.column_encodings, self.column_sizes, strict=True):
            data = mds_encode(encoding, sample[name])
            if size is None:
                lengths += len(data).to_bytes(4, "little")
            elif len(data) != size:
                raise KeyError(
                    f"Unexpected data size; was this data typed with the correct encoding ({encoding})? Column {name} "
                    f"takes {size} bytes, found {len(data)}."
                )
            parts.append(data)
        return b"".join([lengths, *parts])

    def get_config(self) -> dict[str, Any]:
        """Return the description of the shards that stands in each of them and in the index, as JSON."""
        return {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "column_sizes": self.column_sizes,
        }

    def encode_joint_shard(self) -> bytes:
        """Return the file of a shard of the samples in `new_samples`."""
        first = 4 + 4 * (len(self.new_samples) + 1) + len(self.config_data)
        return b"".join([self._encode_table(first, self.config_data), *self.new_samples])


class FilledArray(NdArray):
    """Arrays that are not empty: MosaicML's reader takes no others."""

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape is written."""
        return all(shape) and super().accepts_shape(shape)

    def fast_path(self) -> FastPath:
        """Return the fast path of arrays."""
        return FastPath(encode=array_encoder(self))


class RoundedFloat(Scalar):
    """float16 or float32, to which Python floats are rounded."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of the rounded number."""
        return mds_encode(self.name, value)

    def fast_path(self) -> FastPath:
        """Return a fast path that rounds, and declines NaN, whose bits `struct` may change."""
        kind = self.dtype.type

        def plain(value: Any) -> float:
            if type(value) is kind:
                value = float(value)
            if type(value) is not float or value != value:  # noqa: PLR0124 - NaN
                raise TypeError
            return value

        return FastPath(encode=plain, code=STRUCT_CODES[self.dtype.name])


class PlainInt(Int):
    """Python's int; MosaicML's writer refuses numpy's for this encoding."""

    def fast_path(self) -> FastPath:
        """Return a fast path that declines all but plain ints."""
        return FastPath(kind=int, code=STRUCT_CODES["int64"])


def writing_codec(name: str) -> Encoding:
    """Return the encoding with which the fast path writes; it accepts a value only if the class in `_encodings` does.

    Raises:
        SchemaError: there is no such encoding.
    """
    codec = parse_encoding(name, allow_unsafe_types=True)
    if type(codec) is NdArray:
        return FilledArray(name, None if codec.dtype is None else codec.dtype.name, codec.shape)
    if type(codec) is Scalar and name in {"float16", "float32"}:
        return RoundedFloat(name, name)
    if type(codec) is Int:
        return PlainInt()
    if type(codec) in {Scalar, Bytes, Str, Jpeg}:
        return codec
    family, _, parameters = name.partition(":")
    return TableEncoding(_encodings[family], name, parameters)


serve(__name__, "reader", "writer")
