"""What `import smalti` gives, and what it costs."""

import subprocess
import sys

import smalti

PROBE = """
import sys
before = set(sys.modules)
import smalti
print(",".join(m for m in sys.modules if m not in before and m.split(".")[0] not in sys.stdlib_module_names))
"""

WRITER_PROBE = """
import sys
import smalti.writer, smalti.dataset, smalti.catalog, smalti.cache, smalti.images
print(",".join(m for m in ("torch", "pyspark", "dagster", "pandas", "transformers") if m in sys.modules))
"""


def run(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=True).stdout.split("\n")


def test_importing_smalti_executes_one_module_and_nothing_that_is_installed():
    assert run(PROBE)[0] == "smalti"


def test_reading_and_writing_need_no_framework():
    assert run(WRITER_PROBE)[0] == ""


def test_every_public_name_can_be_had():
    for name in smalti.__all__:
        assert getattr(smalti, name) is not None


def test_the_public_names_are_these():
    assert smalti.__all__ == [
        "__version__",
        "CacheOptions",
        "CommitConflict",
        "CopyOptions",
        "Cursor",
        "DecodeImages",
        "LocalDataset",
        "MDSWriter",
        "Manifest",
        "OrderOptions",
        "PurgeOptions",
        "SmaltiError",
        "Stream",
        "StreamingDataLoader",
        "StreamingDataset",
        "World",
        "add_columns",
        "compact",
        "convert",
        "copy_version",
        "dataframe_to_mds",
        "delete",
        "diagnose",
        "diff",
        "drop_columns",
        "export",
        "forecast_epoch",
        "head",
        "history",
        "info",
        "load_manifest",
        "measure_reading",
        "merge_index",
        "open_dataset",
        "open_store",
        "plan_epoch",
        "preview",
        "register_encoding",
        "reshard_files",
        "reshard_images",
        "rollback",
        "run_cost",
        "stats",
        "sync",
        "tag",
        "tags",
        "untag",
        "vacuum",
        "verify",
        "write_index",
    ]


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(smalti, "StreamingDatasett")
