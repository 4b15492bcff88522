"""What is timed, inside a fresh process; one module per kind. Each takes a Task and gives the figures by name."""

from collections.abc import Callable, Mapping

from benchmarks.measures.access import measure_access
from benchmarks.measures.decoding import measure_decoding
from benchmarks.measures.framing import measure_frame, prepare_frame
from benchmarks.measures.images import measure_images
from benchmarks.measures.linked import fill_cache, measure_cold, measure_first_batch, measure_ranks, measure_warm
from benchmarks.measures.manifests import measure_manifest
from benchmarks.measures.opening import measure_opening, measure_resuming, save_state
from benchmarks.measures.ordering import measure_late_ids, measure_order
from benchmarks.measures.parts import measure_first_resumed, measure_items, measure_sparse
from benchmarks.measures.preparing import multiply_set, prepare_set
from benchmarks.measures.reading import drain, measure_reading
from benchmarks.measures.system_calls import measure_system_calls
from benchmarks.measures.writing import measure_writing
from benchmarks.task import Figures, Task

MEASURES: Mapping[str, Callable[[Task], Figures]] = {
    "access": measure_access,
    "cold": measure_cold,
    "decode": measure_decoding,
    "drain": drain,
    "fill": fill_cache,
    "first-batch": measure_first_batch,
    "first-resumed": measure_first_resumed,
    "frame": measure_frame,
    "images": measure_images,
    "items": measure_items,
    "late-ids": measure_late_ids,
    "manifest": measure_manifest,
    "multiply": multiply_set,
    "open": measure_opening,
    "order": measure_order,
    "prepare": prepare_set,
    "prepare-frame": prepare_frame,
    "ranks": measure_ranks,
    "read": measure_reading,
    "resume": measure_resuming,
    "save-state": save_state,
    "sparse": measure_sparse,
    "system-calls": measure_system_calls,
    "warm": measure_warm,
    "write": measure_writing,
}

__all__ = ["MEASURES"]
