"""Run by MosaicML's interpreter: call its functions and write what was found; imports nothing of Smalti.

python peer_functions.py CASES.json OUT.json

A case is [module, function, positional arguments]; its answer [kind, value, warnings]: kind is "value" or "error", an
error's value the names of its classes.
"""

import json
import sys
import warnings
from importlib import import_module

import numpy as np


def answer(package, module, name, args):
    """Return the outcome of one call, as lists and numbers."""
    function = getattr(import_module(f"{package}.{module}"), name)
    if name.startswith("get_shuffle") or name == "get_sampling":
        place = 1 if name == "get_shuffle" else 0
        args = [*args[:place], np.array(args[place], np.int64), *args[place + 1 :]]
    if name == "divide_spans":
        args = [[tuple(span) for span in args[0]], *args[1:]]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            value = function(*args)
        except Exception as error:
            return ["error", [cls.__name__ for cls in type(error).__mro__], 0]
    if isinstance(value, np.ndarray):
        assert value.dtype == np.int64, value.dtype
        value = [list(value.shape), value.ravel().tolist()]
    return ["value", json.loads(json.dumps(value, default=int)), len(found)]


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        cases = json.load(file)
    with open(sys.argv[2], "w") as file:
        json.dump([answer("streaming.base", *case) for case in cases], file)
