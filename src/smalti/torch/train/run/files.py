"""One checkpoint: its name, its content, and the files of its folder, which are written, verified and read here.

Tensors are stored as safetensors, everything else as JSON. Both are on the disk when a function returns.

Each rank gives the files that it has, and the checkpoint holds them all. Ranks may give disjoint files, such as the
shards of a sharded model. They may also give the same ones, because they share a folder or because each wrote an equal
copy; those are taken once.

Nothing is pickled or unpickled, so a file from an unknown source can at worst be refused. States, such as
`state_dict()`s, become named tensors and JSON values. Scalars, texts, bytes, None, tensors and NumPy arrays are stored,
and lists, tuples and mappings of them; keys of mappings are texts, numbers, truth values or None. A Counter, as
schedulers have it, stays one.

Only the functions of tensors import torch: the preflight, which looks for a run in a process of its own, needs none.
"""

import base64
import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError

from smalti.errors import CheckpointError
from smalti.regular_files import open_regular, read_regular
from smalti.storage.local import sync_path
from smalti.storage.store import check_key

if TYPE_CHECKING:
    import torch

CHECKSUMS_FILE = "checksums.json"
STATE_FILE = "state.json"
FILES = "files"
"""Folder of the files of the ranks in a checkpoint."""
_STATE_FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})(?:-(\d{5,})(?:-(\d+))?)?")
BEFORE_LIVES = -1
"""Life of checkpoints whose names have none."""
_CHUNK_BYTES = 1 << 20  # read at once to compute a file's hash


def write_tensors(path: Path, tensors: "Mapping[str, torch.Tensor]") -> None:
    """Write named tensors of any memory layout to a safetensors file, and flush it to the disk.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.torch import save_file

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


def read_tensors(path: Path) -> "dict[str, torch.Tensor]":
    """Return the tensors of a safetensors file, on the CPU."""
    from safetensors.torch import load_file

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


# ------------------------------------------------------------ the files of the ranks


Identity = tuple[str, int, int]
"""Host, device and inode of a file: equal for ranks that see one file."""


@dataclass(frozen=True)
class Written:
    """A file as it lies in the checkpoint."""

    sha256: str
    num_bytes: int


def given_files(source: "str | Path | None") -> dict[str, Identity]:
    """Return the files of a folder by relative name, or a single file by its name.

    Raises:
        CheckpointError: there is nothing at `source`, or a name or a kind of file cannot be stored.
    """
    if source is None:
        return {}
    root, given = Path(source), dict[str, Identity]()
    with _reading(source):
        if not root.is_file() and not root.is_dir():
            raise CheckpointError(f"`files` is {root}, and there is no file or folder; write it before it is saved.")
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                continue
            if not path.is_file():
                raise CheckpointError(
                    f"{path} is neither a file nor a folder; a checkpoint holds files.", path=str(path)
                )
            status = path.stat()
            name = root.name if path == root else check_key(path.relative_to(root).as_posix())
            given[name] = (socket.gethostname(), status.st_dev, status.st_ino)
    return given


def doubtful_names(offers: Sequence[Mapping[str, Identity]]) -> list[str]:
    """Return the names that several ranks give, of files that are not one and the same."""
    identities: dict[str, set[Identity]] = {}
    for offer in offers:
        for name, identity in offer.items():
            identities.setdefault(name, set()).add(identity)
    return sorted(name for name, found in identities.items() if len(found) > 1)


def hashes_of(source: "str | Path", names: Iterable[str]) -> dict[str, str]:
    """Return the hashes of files that `given_files` found.

    Raises:
        CheckpointError: one cannot be read.
    """
    with _reading(source):
        return {name: sha256_of(_path_of(source, name)) for name in names}


@contextlib.contextmanager
def _reading(source: "str | Path") -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"`files` {source} cannot be read: {error}", path=str(source)) from error


def check_equal(hashes: Sequence[Mapping[str, str]]) -> None:
    """Check that ranks which give a file of one name give equal bytes.

    Raises:
        CheckpointError: they do not; the message names the file and the ranks.
    """
    for name in sorted({name for found in hashes for name in found}):
        by_rank = {rank: found[name] for rank, found in enumerate(hashes) if name in found}
        if len(set(by_rank.values())) > 1:
            raise CheckpointError(
                f"the ranks {sorted(by_rank)} give different files named {name!r}, and the checkpoint can hold one: "
                "put the rank into the names, or let one rank give it.",
                name=name,
            )


def copy_files(source: "str | Path | None", names: Iterable[str], staging: Path) -> None:
    """Copy files into a staging folder. They are not flushed yet.

    Raises:
        CheckpointError: a file cannot be read or written.
    """
    try:
        for name in names:
            target = staging / FILES / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_path_of(source or "", name), target)
    except OSError as error:
        raise CheckpointError(
            f"the files of a checkpoint cannot be copied from {source} to {staging}: {error}. Earlier checkpoints are "
            "untouched; make room or mend the disk and start the run again.",
            path=str(staging),
        ) from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _path_of(source: "str | Path", name: str) -> Path:
    root = Path(source)
    return root if root.is_file() else root / name


# ------------------------------------------------------------ states


_CHANNELS_LAST = "channels_last"


def pack_state(state: Any) -> "tuple[dict[str, torch.Tensor], Any]":
    """Return the tensors of a state by name, and the rest of it as JSON values, which name the tensors.

    Raises:
        CheckpointError: a value is of another type; the message says which, and where it stands.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _packed(state, "state", tensors)


def unpack_state(tensors: "Mapping[str, torch.Tensor]", packed: Any) -> Any:
    """Return the state that `pack_state` took apart; its tensors are on the CPU.

    Raises:
        CheckpointError: the values do not belong together.
    """
    try:
        return _unpacked(packed, tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the state of the checkpoint is not complete: {type(error).__name__}: {error}. Use an older checkpoint."
        ) from error


def _packed(value: Any, where: str, tensors: "dict[str, torch.Tensor]") -> Any:
    import torch

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.Tensor):
        name = _free_name(where, tensors)
        tensors[name] = value
        is_image = value.dim() == 4  # sparse tensors, which are refused where they are written, cannot be asked
        is_last = is_image and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
        return {"tensor": name, **({"format": _CHANNELS_LAST} if is_last else {})}
    if isinstance(value, (np.ndarray, np.generic)):
        name = _free_name(where, tensors)
        tensors[name] = torch.from_numpy(np.array(value))
        return {"array": name}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_packed(each, f"{where}.{number}", tensors) for number, each in enumerate(value)]}
    if isinstance(value, Mapping):
        for key in value:
            if key is not None and not isinstance(key, (str, int, float, bool)):
                raise CheckpointError(
                    f"{where} has a key of type {type(key).__name__}; a checkpoint holds texts and numbers."
                )
        names = sorted(map(str, value))
        if len(set(names)) < len(names):
            raise CheckpointError(f"{where} has keys with one name, such as 1 and '1': {names}; rename one.")
        name = "counter" if isinstance(value, Counter) else "dict"
        return {name: [[key, _packed(each, f"{where}.{key}", tensors)] for key, each in value.items()]}
    raise CheckpointError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold; give tensors, arrays, numbers, texts, "
        "and lists, tuples and dicts of them, such as an object's `state_dict()`."
    )


def _free_name(where: str, taken: "Mapping[str, torch.Tensor]") -> str:
    """Return a name that no other tensor has: keys with dots can give two places one name."""
    name, number = where, 1
    while name in taken:
        number += 1
        name = f"{where}#{number}"
    return name


def _unpacked(packed: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = ((name, each) for name, each in packed.items() if name != "format")
    if kind == "tensor":
        import torch

        tensor = tensors[value]
        is_last = packed.get("format") == _CHANNELS_LAST
        return tensor.contiguous(memory_format=torch.channels_last) if is_last else tensor
    if kind == "array":
        return tensors[value].numpy()
    if kind == "dict":
        return {key: _unpacked(each, tensors) for key, each in value}
    if kind == "counter":
        return Counter({key: _unpacked(each, tensors) for key, each in value})
    if kind in {"list", "tuple"}:
        return {"list": list, "tuple": tuple}[kind](_unpacked(each, tensors) for each in value)
    if kind == "float":
        return float(value)
    if kind == "bytes":
        return base64.b64decode(value)
    raise ValueError(f"unknown kind {kind}")


# ------------------------------------------------------------ the whole checkpoint


@dataclass(frozen=True)
class Snapshot:
    """The content of one checkpoint."""

    step: int
    """Optimiser steps done."""
    tensors: "Mapping[str, Mapping[str, torch.Tensor]]"
    """Named tensors by file: `model`, `optimizer`."""
    state: Mapping[str, Any]
    """Everything else, as JSON: cursor, epoch, optimiser settings, configuration."""


@dataclass(frozen=True, order=True)
class CheckpointName:
    """The name of a checkpoint; the newest life with a checkpoint has the newest one."""

    life: int
    step: int
    attempt: int = 0
    """Number of times that the life had begun to save the step before."""

    def __str__(self) -> str:
        life = "" if self.life == BEFORE_LIVES else f"-{self.life:05d}"
        return f"step-{self.step:08d}{life}" + (f"-{self.attempt}" if self.attempt else "")

    @classmethod
    def parse(cls, text: str) -> "CheckpointName | None":
        """Return the name in a text; None if it is none."""
        match = _NAME.fullmatch(text)
        return match and cls(int(match[2] or BEFORE_LIVES), int(match[1]), int(match[3] or 0))

    def is_replaced_by(self, other: "CheckpointName") -> bool:
        """Return whether another checkpoint is a later one of the same life and step."""
        return (other.life, other.step) == (self.life, self.step) and other.attempt > self.attempt


def write_checkpoint(
    snapshot: Snapshot, staging: Path, files: Mapping[str, Written], on_durable: Callable[[Path], None]
) -> None:
    """Write the files of a snapshot into a staging folder, and the checksums of these and of all ranks' files last.

    Raises:
        OSError: a file cannot be written.
    """
    staging.mkdir(parents=True, exist_ok=True)
    for stem, tensors in snapshot.tensors.items():
        write_tensors(staging / f"{stem}.safetensors", tensors)
        on_durable(staging / f"{stem}.safetensors")
    write_json(staging / STATE_FILE, {**snapshot.state, "step": snapshot.step, "format": _STATE_FORMAT})
    on_durable(staging / STATE_FILE)
    sums = {path.name: sha256_of(path) for path in sorted(staging.iterdir()) if path.is_file()}
    sums.update({f"{FILES}/{name}": written.sha256 for name, written in sorted(files.items())})
    write_json(staging / CHECKSUMS_FILE, {"sha256": sums})
    on_durable(staging / CHECKSUMS_FILE)
    for folder in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
        sync_folder(folder)


def read_checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a checkpoint folder, by its name.

    Raises:
        CheckpointError: they cannot be read.
    """
    sums = read_json(path / CHECKSUMS_FILE).get("sha256")
    if not isinstance(sums, dict) or STATE_FILE not in sums:
        raise CheckpointError(f"{path / CHECKSUMS_FILE} lists no checksums; the file is damaged.", path=str(path))
    return sums


def verify_checkpoint(path: Path, *, without: Mapping[str, Written] | None = None, with_files: bool = True) -> None:
    """Check that a folder holds exactly the files that its checksums name, each unchanged.

    Args:
        path: the folder.
        without: files of ranks that were read back when they were written, or lie elsewhere; they are not looked at.
        with_files: whether to look at the files of ranks at all.

    Raises:
        CheckpointError: a file is missing, changed or added.
    """
    left_out = {f"{FILES}/{name}" for name in without or {}}
    sums = {name: expected for name, expected in read_checksums(path).items() if name not in left_out}
    files = (file for file in path.rglob("*") if not file.is_dir() or file.is_symlink())
    present = {file.relative_to(path).as_posix() for file in files} - {CHECKSUMS_FILE} - left_out
    if not with_files:
        sums = {name: expected for name, expected in sums.items() if "/" not in name}
        present = {name for name in present if "/" not in name}
    if present != set(sums):
        raise CheckpointError(
            f"{path} holds the files {sorted(present)}, but its checksums name {sorted(sums)}.", path=str(path)
        )
    for name, expected in sums.items():
        try:
            found = sha256_of(path / name)
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read: {error}", path=str(path / name)) from error
        if found != expected:
            raise CheckpointError(
                f"{path / name}: sha256 expected {expected}, found {found}; the file has changed since it was written.",
                path=str(path / name),
            )


def load_checkpoint(path: Path, *, with_files: bool = True) -> Snapshot:
    """Verify one checkpoint folder, with or without the files of ranks, and return its content.

    Raises:
        CheckpointError: a file is missing, changed or malformed.
    """
    verify_checkpoint(path, with_files=with_files)
    state = read_json(path / STATE_FILE)
    if state.get("format") != _STATE_FORMAT:
        raise CheckpointError(
            f"{path / STATE_FILE} has format {state.get('format')!r}, this Smalti reads {_STATE_FORMAT}; use the "
            "version that wrote it.",
            path=str(path),
        )
    named = CheckpointName.parse(path.name)
    if type(state.get("step")) is not int or (named is not None and named.step != state["step"]):
        raise CheckpointError(
            f"{path / STATE_FILE} is of step {state.get('step')!s:.40}, expected that of its folder's name; the folder "
            "was renamed, or the file was edited.",
            path=str(path),
        )
    tensors = {file.stem: read_tensors(file) for file in sorted(path.glob("*.safetensors"))}
    return Snapshot(state["step"], tensors, state)
