"""The kinds of data that everything is measured with, generated from a seed and kept on disk between runs.

What belongs here: the values of samples and how they are recognised again. How a library writes or reads them is the
business of `peers`.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.photos import Photos, number_in

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ("tiny", "jpeg", "tokens", "photos", "rows")
TINY_BYTES = 100
ROW_BYTES = 1024
TOKENS = 2048
VOCABULARY = 50257  # GPT-2's
PIXELS = 256
POOL = 512  # distinct pictures; more would only take longer to draw
ROWS_PER_BATCH = 4096
_SEED = 20_240


@dataclass(frozen=True)
class Workload:
    """One kind of data at one size."""

    name: str
    samples: int

    @property
    def columns(self) -> dict[str, str]:
        """The columns in MDS encodings; what Smalti and MosaicML Streaming are given."""
        return {
            "tiny": {"id": "int", "data": "bytes"},
            "jpeg": {"image": "bytes", "label": "int", "name": "str"},
            "tokens": {"tokens": f"ndarray:int32:{TOKENS}"},
            "photos": {"image": "bytes", "label": "int", "name": "str"},
            "rows": {"id": "int64", "label": "int32", "name": "str", "data": "bytes"},
        }[self.name]

    @property
    def batch_size(self) -> int:
        """Samples per batch when reading."""
        return 64 if self.name in {"jpeg", "photos"} else 256


class Data:
    """The samples of a workload, made when first asked for."""

    def __init__(self, workload: Workload, cache: Path) -> None:
        self.workload, self._cache = workload, cache

    @cached_property
    def rows(self) -> "list[dict[str, Any]] | Photos":
        """Every sample as a dict, what a writer of rows is given; photos are made as they are asked for."""
        if self.workload.name == "photos":
            return Photos(self.workload.samples)
        columns = self.values
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @cached_property
    def values(self) -> dict[str, list[Any]]:
        """Every column as a list: ints, bytes, strings, or int32 arrays of shape (2048,)."""
        count = self.workload.samples
        if self.workload.name == "tiny":
            block = self._tiny.tobytes()
            cuts = range(0, len(block), TINY_BYTES)
            return {"id": list(range(count)), "data": [block[at : at + TINY_BYTES] for at in cuts]}
        if self.workload.name == "rows":
            block = self._rows.tobytes()
            return {
                "id": list(range(count)),
                "label": [i % 1000 for i in range(count)],
                "name": [f"{i:08d}.row" for i in range(count)],
                "data": [block[at : at + ROW_BYTES] for at in range(0, len(block), ROW_BYTES)],
            }
        if self.workload.name == "jpeg":
            pool = self.pictures
            return {
                "image": [pool[i % len(pool)] for i in range(count)],
                "label": [i % 1000 for i in range(count)],
                "name": [f"{i:08d}.jpg" for i in range(count)],
            }
        return {"tokens": list(self.tokens)}

    def batches(self) -> "list[pa.RecordBatch]":
        """The same as Arrow record batches of a few thousand rows."""
        import pyarrow as pa

        columns = self.values
        if self.workload.name == "tokens":
            flat = pa.array(self.tokens.reshape(-1))
            table = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(flat, TOKENS)})
        else:
            kinds = {"id": pa.int64(), "label": pa.int64(), "name": pa.string()}
            table = pa.table({name: pa.array(column, kinds.get(name, pa.binary())) for name, column in columns.items()})
        return cast("list[pa.RecordBatch]", table.combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH))

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        if self.workload.name == "photos":
            return Photos(self.workload.samples).num_bytes
        if self.workload.name == "tokens":
            return self.workload.samples * TOKENS * 4
        if self.workload.name == "tiny":
            return self.workload.samples * (TINY_BYTES + 8)
        if self.workload.name == "rows":
            return self.workload.samples * (ROW_BYTES + 8 + 4 + 12)
        pool = [len(picture) for picture in self.pictures]
        return sum(pool[i % len(pool)] for i in range(self.workload.samples)) + self.workload.samples * 20

    @cached_property
    def pictures(self) -> list[bytes]:
        """The pool of JPEG files, about 15 KB each."""
        path = self._cache / f"pictures-{POOL}-{_SEED}.npz"
        if not path.exists():
            files = _draw_pictures()
            path.parent.mkdir(parents=True, exist_ok=True)
            sizes = np.array([len(file) for file in files])
            whole = io.BytesIO()
            np.savez(whole, data=np.frombuffer(b"".join(files), np.uint8), ends=np.cumsum(sizes))
            temp = path.with_suffix(".tmp")
            temp.write_bytes(whole.getvalue())
            temp.replace(path)
        with np.load(path) as stored:
            data, ends = stored["data"].tobytes(), stored["ends"].tolist()
        return [data[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        """Token ids, shape (samples, 2048), as frequent as in text (log-uniform ranks); the first is the id."""
        rng = np.random.default_rng(_SEED)
        drawn = np.empty((self.workload.samples, TOKENS), np.int32)
        for row in drawn:  # row by row: the same samples at every size, and no array of doubles
            row[:] = VOCABULARY ** rng.random(TOKENS)
        drawn[:, 0] = np.arange(self.workload.samples)
        return drawn

    @cached_property
    def _tiny(self) -> NDArray[np.uint8]:
        return self._numbered_bytes(TINY_BYTES)

    @cached_property
    def _rows(self) -> NDArray[np.uint8]:
        return self._numbered_bytes(ROW_BYTES)

    def _numbered_bytes(self, width: int) -> NDArray[np.uint8]:
        rng = np.random.default_rng(_SEED)
        drawn = rng.integers(0, 256, (self.workload.samples, width), np.uint8)
        drawn[:, :8] = np.arange(self.workload.samples, dtype="<i8").view(np.uint8).reshape(-1, 8)
        return drawn

    def wrong(self, ids: Sequence[int], payloads: Sequence[Any]) -> int:
        """How many of these samples are not what was written under their id."""
        bad = abs(len(ids) - len(payloads))
        for sample_id, payload in zip(ids, payloads, strict=False):
            if self.workload.name == "tokens":
                bad += not np.array_equal(np.asarray(payload), self.tokens[sample_id])
            elif self.workload.name == "tiny":
                bad += bytes(payload) != self._tiny[sample_id].tobytes()
            elif self.workload.name == "rows":
                bad += bytes(payload) != self._rows[sample_id].tobytes()
            elif self.workload.name == "photos":
                bad += number_in(payload) != sample_id
            else:
                bad += bytes(payload) != self.pictures[sample_id % POOL]
        return bad


def _draw_pictures() -> list[bytes]:
    import simplejpeg

    down, across = np.mgrid[0:PIXELS, 0:PIXELS].astype(np.float32)
    files = []
    for number in range(POOL):
        rng = np.random.default_rng([_SEED, number])
        picture = rng.normal(128, 4.6, (PIXELS, PIXELS, 3)).astype(np.float32)
        for _ in range(6):
            x, y, phase = rng.uniform(0, 0.08), rng.uniform(0, 0.08), rng.uniform(0, 6.3)
            picture += np.sin(x * across + y * down + phase)[..., None] * rng.uniform(10, 40, 3).astype(np.float32)
        coarse = rng.normal(0, 8, (PIXELS // 4, PIXELS // 4, 3)).astype(np.float32)
        picture += coarse.repeat(4, 0).repeat(4, 1)
        pixels = np.clip(picture, 0, 255).astype(np.uint8)
        files.append(simplejpeg.encode_jpeg(pixels, quality=86, colorsubsampling="420"))
    return files
