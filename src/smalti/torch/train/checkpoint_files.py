"""Files of a checkpoint or model folder: tensors as safetensors, everything else as JSON, each durable when written.

Nothing here is, or reads, a pickle: a file from somebody else can at worst be refused.
"""

import hashlib
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

_CHUNK_BYTES = 1 << 20


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors of any memory layout to a safetensors file, and flush it to the disk.

    Raises:
        OSError: the disk is full or refuses.
    """
    apart: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        # safetensors has no notion of tied weights: each name gets its own bytes.
        apart[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(apart[name].data_ptr())
    # transformers opens only files that say which framework wrote them.
    try:
        save_file(apart, str(path), metadata={"format": "pt"})
    except SafetensorError as error:  # so it calls what the operating system refused
        raise OSError(f"{path.name}: {error}") from error
    sync_file(path)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Raises:
        CheckpointError: the file is not one.
    """
    try:
        return dict(load_file(str(path), device="cpu"))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}", path=str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file and flushes it to the disk."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    sync_file(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: the file cannot be read or does not hold an object.
    """
    try:
        value = json.loads(path.read_bytes(), parse_float=_finite, parse_constant=_finite)
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
    """Like `write_json`, but a reader sees either the old file or the whole new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_json(fresh, value)
    fresh.replace(path)
    sync_folder(path.parent)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sync_file(path: Path) -> None:
    """Returns when the file's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Returns when the folder's names are on the disk, as far as its file system knows how."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # FUSE mounts (UC Volumes among them) refuse to sync a folder; the file's own sync has succeeded.
        return
    finally:
        os.close(descriptor)
