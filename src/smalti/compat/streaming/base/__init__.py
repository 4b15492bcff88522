"""The modules of `streaming.base` under the same names, each imported on first use; read `dataset` first."""

from typing import TYPE_CHECKING

from smalti.compat.paths import lazy_package, serve

if TYPE_CHECKING:
    from smalti.compat.streaming.base.dataloader import StreamingDataLoader as StreamingDataLoader
    from smalti.compat.streaming.base.dataset import StreamingDataset as StreamingDataset
    from smalti.compat.streaming.base.format import CSVWriter as CSVWriter
    from smalti.compat.streaming.base.format import JSONWriter as JSONWriter
    from smalti.compat.streaming.base.format import MDSWriter as MDSWriter
    from smalti.compat.streaming.base.format import TSVWriter as TSVWriter
    from smalti.compat.streaming.base.format import XSVWriter as XSVWriter
    from smalti.compat.streaming.base.local import LocalDataset as LocalDataset
    from smalti.compat.streaming.base.stream import Stream as Stream

_HOMES = {
    "CSVWriter": "format",
    "JSONWriter": "format",
    "LocalDataset": "local",
    "MDSWriter": "format",
    "Stream": "stream",
    "StreamingDataLoader": "dataloader",
    "StreamingDataset": "dataset",
    "TSVWriter": "format",
    "XSVWriter": "format",
}
__all__ = [*_HOMES]  # noqa: PLE0604 -- strings

__getattr__, __dir__ = lazy_package(__name__, _HOMES)
serve(
    __name__,
    "distributed",
    home=f"{__name__}.world",
    __all__=[
        "all_gather", "barrier", "broadcast", "get_local_rank", "get_local_world_size", "get_rank", "get_world_size",
    ],
)  # fmt: skip
serve(__name__, "hashing", home=f"{__name__}.compression", __all__=["get_hash", "get_hashes", "is_hash"])
serve(__name__, "sampling", home="smalti.compat.streaming.order.sampling", __all__=["get_sampling"])
serve(__name__, "spanner", home=f"{__name__}.array", __all__=["Spanner"])
