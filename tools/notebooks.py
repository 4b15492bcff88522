"""Runs the notebooks from top to bottom and stores their outputs: what `make notebooks` runs.

    make notebooks                                         all of notebooks/
    make notebooks ARGS="notebooks/flowers.ipynb"          one of them
    python tools/notebooks.py --into FOLDER [NOTEBOOK...]  stores the results elsewhere; the tests do

Each notebook runs in a kernel of its own, which is this Python, and in a new folder. What is stored depends on the
outputs alone: no times, no versions, no text on standard error (warnings and progress, which differ by machine).
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat as untyped_nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from traitlets import default

nbformat: Any = untyped_nbformat  # has few annotations
REPOSITORY = Path(__file__).resolve().parents[1]
NOTEBOOKS = REPOSITORY / "notebooks"
CELL_SECONDS = 240
"""Longest time of one cell."""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""That of every notebook, whichever Python has run it."""
HIDDEN = ("SMALTI_FLOWERS", "MPLBACKEND", "PYTEST_CURRENT_TEST")
"""Variables that change outputs: other photos; other pictures; other handling of what child processes print."""


class _ThisPython(KernelSpecManager):
    """The only kernel: the Python that runs this program, whatever kernels the machine has."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


class _Kernel(AsyncKernelManager):
    """A manager of that kernel."""

    @default("kernel_spec_manager")
    def _specs(self) -> KernelSpecManager:
        return _ThisPython(parent=self)


def main(arguments: "list[str] | None" = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="by default all of notebooks/")
    parser.add_argument("--into", type=Path, help="folder for the results; by default the notebooks are replaced")
    options = parser.parse_args(arguments)
    for path in options.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        begin = time.monotonic()
        try:
            text = executed(path)
        except (CellExecutionError, CellTimeoutError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        (path if options.into is None else options.into / path.name).write_text(text, encoding="utf-8")
        print(f"{path}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def executed(path: Path) -> str:
    """Run a notebook, and return the text of its file with the new outputs.

    Raises:
        CellExecutionError: a cell raised an exception; the message has its code and traceback.
        CellTimeoutError: a cell did not end in time.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="smalti-notebook-") as folder:
        work = Path(folder, "work")
        work.mkdir()
        _isolate(Path(folder))
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            kernel_manager_class=_Kernel,
            record_timing=False,
            resources={"metadata": {"path": str(work)}},
        )
        client.execute()
    return str(nbformat.writes(clean(notebook), version=4)) + "\n"


def clean(notebook: Any) -> Any:
    """Return the notebook without what depends on the machine or the time of its execution."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({name: cell.metadata[name] for name in ("tags",) if name in cell.metadata})
        if cell.cell_type == "code":
            cell.outputs = list(_joined(cell.outputs))
    return notebook


def _joined(outputs: Any) -> Iterator[Any]:
    """Yield the outputs of a cell with its standard output in one piece, and without standard error."""
    printed = "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")
    if printed:
        yield nbformat.v4.new_output("stream", name="stdout", text=printed)
    yield from (each for each in outputs if each.output_type != "stream")


def _isolate(folder: Path) -> None:
    """Set the environment: no settings of this user, no other files of theirs, one thread for each process."""
    for name in HIDDEN:
        os.environ.pop(name, None)
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[name] = str(folder / name.lower())
    os.environ["JUPYTER_PLATFORM_DIRS"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order on every machine; and several threads wait on busy cores


if __name__ == "__main__":
    sys.exit(main())
