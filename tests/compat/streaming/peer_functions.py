"""Run by MosaicML's interpreter: call its functions and write what was found; imports nothing of Smalti.

python peer_functions.py FOLDER

A case in FOLDER/cases.json is [module, function, positional arguments]; its answer in FOLDER/answers.json [kind, value,
warnings]: kind is "value" or "error", an error's value the names of its classes.

Parts of a data set are written to FOLDER/untouched/<part>/ and copied to FOLDER/set, which is merged. A list of parts
is merged into FOLDER/elsewhere, and pairs of which some are there locally, into FOLDER/local and FOLDER/set2.
"""

import json
import shutil
import sys
import warnings
from importlib import import_module

import numpy as np


def module_of(package, module):
    """Import a module; Smalti has no modules of one function, but their packages have the functions."""
    try:
        return import_module(f"{package}.{module}")
    except ModuleNotFoundError:
        return import_module(f"{package}.{module.rpartition('.')[0]}")


def answer(package, module, name, args):
    """Return the outcome of one call, as lists and numbers."""
    function = getattr(module_of(package, module), name)
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


def merge(folder):
    """Write parts of a data set, and merge their indices."""
    from streaming import CSVWriter, JSONWriter, MDSWriter
    from streaming.base.util import merge_index

    for part in range(11):
        options = {"compression": "zstd:3"} if part % 2 else {"hashes": ["sha1"]}
        with MDSWriter(out=f"{folder}/set/{part}", columns={"id": "int", "x": "str"}, size_limit=400, **options) as out:
            for row in range(40 if part != 3 else 0):
                out.write({"id": row, "x": "a" * row})
    for writer, name in ((CSVWriter, "csv"), (JSONWriter, "json")):
        with writer(out=f"{folder}/set/{name}-part", columns={"id": "int", "x": "str"}, compression="gz") as out:
            out.write({"id": 1, "x": "b"})
    shutil.copytree(f"{folder}/set", f"{folder}/untouched")
    shutil.copytree(f"{folder}/set", f"{folder}/set2")
    merge_index(f"{folder}/set")
    urls = [f"{folder}/untouched/{part}/index.json" for part in (7, 10, 2, 7)]
    merge_index(urls, f"{folder}/elsewhere")
    for part in (1, 2):
        shutil.copytree(f"{folder}/set2/{part}", f"{folder}/local/{part}")
    pairs = [(f"{folder}/local/{part}/index.json", f"{folder}/set2/{part}/index.json") for part in (5, 2, 1)]
    merge_index(pairs, (f"{folder}/local", f"{folder}/set2"))


def main(folder):
    """Answer the cases of the folder, and merge."""
    with open(f"{folder}/cases.json") as file:
        cases = json.load(file)
    with open(f"{folder}/answers.json", "w") as file:
        json.dump([answer("streaming.base", *case) for case in cases], file)
    warnings.simplefilter("ignore")
    merge(folder)


if __name__ == "__main__":
    main(sys.argv[1])
