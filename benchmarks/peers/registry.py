"""Which libraries take part, under which short names, and what they need to be installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from benchmarks.peers.interface import Peer


@dataclass(frozen=True)
class Known:
    """One participant: where its adapter is and what it stands on."""

    module: str
    attribute: str
    needs: tuple[str, ...]
    """Modules that must be importable."""
    distributions: tuple[str, ...] = ()
    is_floor: bool = False
    """A limit of the machine, not a library."""
    true_shuffle: bool = True
    """Whether a shuffled epoch mixes all samples, not only stored neighbours."""


_TORCH = ("torch",)
_MOSAICML = ("mosaicml-streaming", "filelock")

KNOWN: Mapping[str, Known] = {
    "smalti": Known("smalti", "Smalti", ("smalti",), ("smalti",)),
    "smalti-source": Known("smalti", "SourceSmalti", ("smalti", "pyspark.sql.datasource"), ("smalti",)),
    "smalti-torch": Known("smalti", "TorchSmalti", ("smalti",), ("smalti",)),
    "smalti-plain": Known("smalti", "PlainSmalti", ("smalti",), ("smalti",)),
    "smalti-sparse": Known("smalti", "SparseSmalti", ("smalti",), ("smalti",)),
    "smalti-alias": Known("mosaicml", "Alias", ("smalti",), ("smalti",)),
    "mosaicml": Known("mosaicml", "Mosaicml", ("streaming",), _MOSAICML),
    "litdata": Known("litdata", "Litdata", ("litdata",), ("litdata",), true_shuffle=False),
    "litfull": Known("litdata", "LitdataFull", ("litdata",), ("litdata",)),
    "wds": Known("wds", "Webdataset", ("webdataset",), ("webdataset",), true_shuffle=False),
    "hfds": Known("hfds", "HuggingFace", ("datasets",), ("datasets",)),
    "grain": Known("grains", "Grain", ("grain", "array_record"), ("grain", "array-record")),
    "folder": Known("pictures", "Folder", ("torch",), ("pillow",)),
    "spdl": Known("pictures", "Spdl", ("spdl",), ("spdl-io",)),
    "torch": Known("samplers", "TorchSampler", _TORCH, _TORCH),
    "sol": Known("floors", "InMemory", _TORCH, _TORCH, is_floor=True),
    "solb": Known("floors", "MemoryMap", _TORCH, _TORCH, is_floor=True),
    "solb-rows": Known("floors", "RowByRow", (), is_floor=True),
    "memcpy": Known("floors", "Memcpy", (), is_floor=True),
    "plain": Known("floors", "PlainWrite", (), is_floor=True),
    "plain-fsync": Known("floors", "SyncedWrite", (), is_floor=True),
    "link": Known("links", "PlainLink", (), is_floor=True),
    "link-disk": Known("links", "LinkToDisk", (), is_floor=True),
    "parquet": Known("spark_floors", "ParquetWrite", ("pyspark",), ("pyspark",), is_floor=True),
    "frame-read": Known("spark_floors", "FrameRead", ("pyspark",), ("pyspark",), is_floor=True),
    "frame-arrow": Known("spark_floors", "ArrowOnly", ("pyspark",), ("pyspark",), is_floor=True),
    "decode": Known("floors", "DecodeOnly", ("simplejpeg",), ("simplejpeg",), is_floor=True),
}


def find(name: str) -> Peer:
    """The adapter of that name.

    Raises:
        ImportError: its library is not installed.
    """
    known = KNOWN[name]
    peer: Peer = getattr(import_module(f"benchmarks.peers.{known.module}"), known.attribute)()
    return peer


def is_installed(name: str) -> bool:
    """Whether everything that it needs can be imported; imports nothing."""
    return all(find_spec(module) is not None for module in KNOWN[name].needs)


def distributions() -> dict[str, str]:
    """Versions of everything that takes part, and of what they stand on."""
    wanted = {name for known in KNOWN.values() for name in known.distributions}
    wanted |= {
        "numpy",
        "pyarrow",
        "torch",
        "xxhash",
        "zstandard",
        "simplejpeg",
        "fsspec",
        "s3fs",
        "aiobotocore",
        "obstore",
        "boto3",
    }
    found = {}
    for name in sorted(wanted):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
