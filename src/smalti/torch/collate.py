"""Default collation: from columns, or from samples, to tensors; and the check that streams can be batched by column."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from smalti.dataset.order import Reading
from smalti.errors import SchemaError
from smalti.format.logical import MASK_SUFFIX
from smalti.stream import ShardSet

# Kinds of numpy's dtypes.
_TORCH_KINDS = "biufc"
_TIME_KINDS = "Mm"
_COLLATED = (np.ndarray, torch.Tensor, np.bool_, np.number, np.datetime64, int, float, complex, Mapping, list, tuple)
_NOT_INT64 = np.dtype(np.uint64)  # the only whole numbers that int64 cannot hold


def columns_to_tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Convert numeric arrays to tensors, without a copy if the array is writable and the dtype stays.

    One whole number per sample, such as a label, becomes int64, which torch's losses and indices expect (uint64 stays
    as it is); all other numbers keep their dtype. Numeric arrays of equal shape in a list are stacked, and lists of
    Python's numbers converted; other lists (text, bytes, arrays of varying shape) are returned unchanged. Times and
    durations become int64 in their own unit, as torch has no type for them. A column `age` with nulls is accompanied by
    a bool tensor `age__is_null`.
    """
    tensors: dict[str, Any] = {}
    for name, value in columns.items():
        tensors[name] = _column(value)
        if _may_be_masked(value) and isinstance(value, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(value)
            tensors[name + MASK_SUFFIX] = torch.from_numpy(mask.reshape(len(mask), -1).all(axis=1))
    return tensors


class SampleCollate:
    """A collate function for lists of samples, which makes the same batches of mappings as `columns_to_tensors`.

    Values that are mappings, lists or tuples are collated as torch's `default_collate` does it, and so are samples that
    are no mappings.
    """

    def __init__(self) -> None:
        self.stored: frozenset[str] = frozenset()
        """Columns of the shard sets: their lists and mappings, such as those of JSON, stay as they are."""

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of some samples.

        Raises:
            SchemaError: the samples have different columns, or a column cannot be collated; the message names it.
        """
        if not all(isinstance(sample, Mapping) for sample in samples):
            return collate(samples, collate_fn_map=_COLLATE_FUNCTIONS)
        names = list(samples[0])
        for sample in samples:
            if differing := set(names) ^ set(sample):
                raise SchemaError(
                    f"only some samples of a batch have the column {min(differing, key=str)!r}: the transform, or "
                    "`__getitem__`, must return the same columns for every sample.",
                    column=min(differing, key=str),
                )
        return {name: self._column(name, [sample[name] for sample in samples]) for name in names}

    def _column(self, name: Any, values: list[Any]) -> Any:
        present = [value for value in values if value is not None]
        first = present[0] if present else None
        is_stored = name in self.stored and isinstance(first, Mapping | list | tuple)
        if first is None or is_stored or not isinstance(first, _COLLATED):
            return values
        if len(present) < len(values):
            raise SchemaError(
                f"column {name!r} holds None among {type(first).__name__}: fill nulls in the transform of samples, or "
                f"make it a transform on batches (`on_batches = True`), whose batches have `{name}{MASK_SUFFIX}`.",
                column=name,
            )
        if isinstance(first, np.ndarray) or _are_numbers(values):
            return _column(values)
        if isinstance(first, torch.Tensor) and len({getattr(value, "shape", None) for value in values}) > 1:
            return values
        try:
            return collate(values, collate_fn_map=_COLLATE_FUNCTIONS)
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
            raise SchemaError(
                f"column {name!r} cannot be collated: {error}. Make the values of a batch alike in the transform, or "
                "give the loader a `collate_fn`.",
                column=name,
            ) from error


def _column(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _TORCH_KINDS + _TIME_KINDS:
        return _tensor(np.ma.getdata(value) if _may_be_masked(value) else value)
    if not isinstance(value, list) or not value:
        return value
    first = value[0]
    if isinstance(first, np.ndarray) and first.dtype.kind in _TORCH_KINDS + _TIME_KINDS:
        is_alike = all(isinstance(row, np.ndarray) and row.dtype == first.dtype for row in value)
        return _tensor(np.stack(value)) if is_alike and all(row.shape == first.shape for row in value) else value
    return _numbers(value) if _are_numbers(value) else value


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(type(value) in {int, float, bool} for value in values)


def _numbers(values: list[Any]) -> Any:
    """Return numbers of Python, such as those of `str_int`, as a tensor; numbers that are too large as they are."""
    try:
        return collate(values, collate_fn_map=_COLLATE_FUNCTIONS)
    except (ValueError, OverflowError, RuntimeError):
        return values


def _may_be_masked(value: Any) -> bool:
    """Return whether a value may be a masked array; without one, numpy does not import `np.ma`, which takes 20 ms."""
    return isinstance(value, np.ndarray) and type(value) is not np.ndarray


def _tensor(array: "np.ndarray[Any, Any]") -> torch.Tensor:
    if array.dtype.kind in _TIME_KINDS:
        array = array.view(np.int64)
    elif array.ndim == 1 and array.dtype.kind in "iu" and array.dtype != _NOT_INT64:
        array = array.astype(np.int64, copy=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _collate_scalars(values: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:  # noqa: ARG001 - torch's signature
    return _tensor(np.array(values))


_COLLATE_FUNCTIONS: dict[Any, Any] = {  # the first that fits is used
    np.datetime64: _collate_scalars,
    np.timedelta64: _collate_scalars,
    np.integer: _collate_scalars,
    **default_collate_fn_map,
}


def check_batches(reading: Reading, sets: Sequence[ShardSet]) -> None:
    """Check that no batch at either end of one rank's part of a pass mixes streams with different columns.

    Samples that do not fill a batch of their stream, less than one batch of each, are at the end of an epoch. So it is
    sufficient to plan as many steps as there are streams, plus one, at both ends of the pass.

    Raises:
        SchemaError: a batch mixes streams with different columns.
    """
    schemas: dict[tuple[Any, ...], int] = {}
    schema_of = np.array(
        [schemas.setdefault((each.logical, *sorted(each.columns.items())), len(schemas)) for each in sets]
    )
    if len(schemas) < 2:
        return
    ends = np.cumsum([each.num_samples for each in sets])
    num_steps, num_checked = reading.division.num_steps, len(sets) + 1
    for first, stop in ((0, num_checked), (max(num_checked, num_steps - num_checked), num_steps)):
        for step, ids in reading.steps(first, stop):
            streams = np.unique(np.searchsorted(ends, ids, side="right"))
            if np.unique(schema_of[streams]).size > 1:
                raise _mixed_batch(sets, streams.tolist(), schema_of[streams].tolist(), step.step, num_steps)


def _mixed_batch(
    sets: Sequence[ShardSet], streams: list[int], schemas: list[int], step: int, num_steps: int
) -> SchemaError:
    one = streams[0]
    other = next(stream for stream, schema in zip(streams, schemas, strict=True) if schema != schemas[0])
    columns = [
        each.columns | dict(each.logical.types if each.logical is not None else {}) for each in (sets[one], sets[other])
    ]
    return SchemaError(
        f"streams {one} ({sets[one].options.root}) and {other} ({sets[other].options.root}) have different columns, "
        f"{columns[0]} and {columns[1]}, and step {step} of {num_steps} holds samples of both. Use "
        "`OrderOptions(batching_method='per_stream')`, with weights and an `epoch_size` by which each stream gives a "
        "multiple of the global batch (what is left of each is mixed at the epoch's end); or read by sample, with a "
        "`collate_fn`.",
        streams=(one, other),
        step=step,
    )
