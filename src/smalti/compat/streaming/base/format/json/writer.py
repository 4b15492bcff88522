"""JSONWriter, the writer of JSON shards: a JSON object on each line."""

import json
from typing import Any

from smalti.compat.streaming.base.format.base.writer import Out, SplitWriter, check_layout, encode_json, encode_table
from smalti.compat.streaming.base.format.json.encodings import is_json_encoded, is_json_encoding
from smalti.compat.streaming.errors import BadColumn

__all__ = ["JSONWriter"]


class JSONWriter(SplitWriter):
    r"""A writer of JSON shards.

    Args:
        columns: Name to type: str, int or float.
        newline: End of each line.
        out: as for `Writer`, like the arguments that are not named here.
        keep_local: as for `Writer`.
        compression: as for `Writer`.
        hashes: as for `Writer`.
        size_limit: as for `Writer`; it counts the lines.
        **kwargs: as for `Writer`.

    Raises:
        AssertionError: a type is unknown; it is a ValueError too.
    """

    format = "json"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        for name, encoding in columns.items():
            if not is_json_encoding(encoding):
                raise BadColumn(f"column {name!r}: JSON shards hold str, int and float, not {encoding!r:.80}.")
        check_layout(self.format, columns, newline)
        super().__init__(
            out=out, keep_local=keep_local, compression=compression, hashes=hashes, size_limit=size_limit, **kwargs
        )
        self.columns = columns
        self.newline = newline

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """Return the line of a sample; errors are those of `write`."""
        values = {name: sample[name] for name in self.columns}
        for name, encoding in self.columns.items():
            is_json_encoded(encoding, values[name])
        return (json.dumps(values, sort_keys=True) + self.newline).encode("utf-8")

    def get_config(self) -> dict[str, Any]:
        """Return the description of the shards that stands in each of them and in the index, as JSON."""
        return {**super().get_config(), "columns": self.columns, "newline": self.newline}

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the files of a shard of the samples in `new_samples`: lines of text, and their offsets."""
        table = encode_table(map(len, self.new_samples), encode_json(self.get_config()), 0)
        return b"".join(self.new_samples), table
