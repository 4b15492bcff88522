"""Files of tensors and of JSON values that are on the disk when a function returns."""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from smalti.errors import CheckpointError
from smalti.regular_files import read_regular
from smalti.storage.local import sync_path


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors of any memory layout to a safetensors file, and flush it to the disk.

    Raises:
        OSError: the file cannot be written.
    """
    separate: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        # safetensors has no notion of tied weights: each name gets its own bytes.
        separate[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(separate[name].data_ptr())
    try:
        # transformers opens only files whose metadata names the framework that wrote them.
        save_file(separate, str(path), metadata={"format": "pt"})
    except SafetensorError as error:  # also raised for errors of the operating system
        raise OSError(f"{path.name}: {error}") from error
    sync_path(path)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, on the CPU."""
    try:
        return dict(load_file(str(path), device="cpu"))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}", path=str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file and flush it to the disk."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    sync_path(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: the file cannot be read or does not hold an object.
    """
    try:
        value = json.loads(read_regular(path), parse_float=_finite, parse_constant=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}", path=str(path)) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, expected a JSON object.", path=str(path))
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is no finite number")
    return number


def replace_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically: a reader sees either the old file or the whole new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_json(fresh, value)
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk. Best effort: FUSE mounts (UC Volumes among them) refuse it."""
    with contextlib.suppress(OSError):
        sync_path(path)
