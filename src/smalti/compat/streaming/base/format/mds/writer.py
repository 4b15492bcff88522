"""MDSWriter, the writer of MDS shards."""

from typing import Any

from smalti.compat.streaming.base.format.base.writer import JointWriter, Out, encode_json, encode_table
from smalti.compat.streaming.base.format.mds.codecs import writing_codec
from smalti.compat.streaming.base.format.mds.encodings import (
    get_mds_encoded_size,
    get_mds_encodings,
    is_mds_encoding,
    mds_encode,
)
from smalti.compat.streaming.errors import BadColumn
from smalti.format import Schema
from smalti.format.writing.rows import make_fast_encoder

__all__ = ["MDSWriter"]


class MDSWriter(JointWriter):
    """A writer of MDS shards.

        with MDSWriter(columns={"image": "jpeg", "label": "int"}, out="/data/set") as writer:
            writer.write({"image": data, "label": 3})

    Args:
        columns: Name to encoding.
        out: as for `Writer`, like the arguments that are not named here.
        keep_local: as for `Writer`.
        compression: as for `Writer`.
        hashes: as for `Writer`.
        size_limit: as for `Writer`.
        **kwargs: as for `Writer`.

    Raises:
        TypeError: an encoding is unknown; it is a ValueError too.
    """

    format = "mds"
    extra_bytes_per_sample = 4

    def __init__(
        self,
        *,
        columns: dict[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        for name, encoding in columns.items():
            if not is_mds_encoding(encoding):
                raise BadColumn(
                    f"MDSWriter passed column `{name}` with encoding `{encoding}` is unsupported. Supported encodings "
                    f"are {get_mds_encodings()}"
                )
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            extra_bytes_per_sample=self.extra_bytes_per_sample,
            **kwargs,
        )
        self.columns = columns
        self.column_names: list[str] = sorted(columns)
        self.column_encodings: list[str] = [columns[name] for name in self.column_names]
        self.column_sizes: list[int | None] = list(map(get_mds_encoded_size, self.column_encodings))
        schema = Schema(tuple(self.column_names), tuple(self.column_encodings), tuple(self.column_sizes))
        codecs = tuple(map(writing_codec, self.column_encodings))
        self._encode = make_fast_encoder(schema, codecs, self._encode_slowly, takes_more=True) if columns else None
        self.config_data = encode_json(self.get_config())
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
        return b"".join([encode_table(map(len, self.new_samples), self.config_data, first), *self.new_samples])
