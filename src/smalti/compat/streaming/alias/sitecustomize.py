"""Python runs this at the start of each process whose PYTHONPATH has this folder: it registers the alias there too.

The folder hides a `sitecustomize` of the environment itself, which is therefore run from here. Another interpreter,
which does not have Smalti, does not search this folder any further.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _run_hidden() -> None:
    """Run the `sitecustomize` that Python would have run without this folder."""
    hidden = PathFinder.find_spec(__name__, [folder for folder in sys.path if folder != _HERE])
    if hidden is not None and hidden.loader is not None:
        hidden.loader.exec_module(module_from_spec(hidden))


if __name__ == "sitecustomize":
    if find_spec("smalti") is None:
        sys.path[:] = [folder for folder in sys.path if folder != _HERE]
    else:
        from smalti.compat.streaming.alias import install

        install()
    _run_hidden()
