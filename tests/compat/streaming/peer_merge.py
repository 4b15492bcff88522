"""Run by MosaicML's interpreter: write parts of a data set and merge their indices; imports nothing of Smalti.

python peer_merge.py FOLDER

Writes FOLDER/set/<part>/, copies it to FOLDER/untouched, and merges FOLDER/set; then merges a list of its parts into
FOLDER/elsewhere, and pairs of which half are there locally, into FOLDER/local and FOLDER/set2.
"""

import shutil
import sys
import warnings
from pathlib import Path

from streaming import CSVWriter, JSONWriter, MDSWriter
from streaming.base.util import merge_index

warnings.simplefilter("ignore")


def main(folder):
    for part in range(11):
        options = {"compression": "zstd:3"} if part % 2 else {"hashes": ["sha1"]}
        with MDSWriter(out=f"{folder}/set/{part}", columns={"id": "int", "x": "str"}, size_limit=400, **options) as out:
            for row in range(40 if part != 3 else 0):
                out.write({"id": row, "x": "a" * row})
    for writer, name in ((CSVWriter, "csv"), (JSONWriter, "json")):
        with writer(out=f"{folder}/set/{name}-part", columns={"id": "int", "x": "str"}, compression="gz") as out:
            out.write({"id": 1, "x": "b"})
    # MosaicML's root form takes the meta files of JSON shards for index files where they are not compressed.
    shutil.copytree(f"{folder}/set", f"{folder}/untouched")
    shutil.copytree(f"{folder}/set", f"{folder}/set2")
    merge_index(f"{folder}/set")
    urls = [f"{folder}/untouched/{part}/index.json" for part in (7, 10, 2, 7)]
    merge_index(urls, f"{folder}/elsewhere")
    for part in (1, 2):
        shutil.copytree(f"{folder}/set2/{part}", f"{folder}/local/{part}")
    pairs = [(f"{folder}/local/{part}/index.json", f"{folder}/set2/{part}/index.json") for part in (5, 2, 1)]
    merge_index(pairs, (f"{folder}/local", f"{folder}/set2"))
    assert Path(f"{folder}/local/index.json").exists()


if __name__ == "__main__":
    main(sys.argv[1])
