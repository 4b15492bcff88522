"""Conversion without Spark: rows of files, folders and other formats as a version of a shard set, on all cores.

`convert` runs on the cores of one machine (`conversion`, with its processes in `workers`); on several machines, Spark
writes (`smalti.spark`). `source` is the interface of a source of rows, `registry` the table of formats, and `sources`
has a module for each. The steps of a write, types and null policies are in `smalti.writer.tables`, where
Spark uses them too. Read `conversion` first.
"""

from smalti.conversion.conversion import ConversionProgress, convert
from smalti.conversion.registry import Format
from smalti.conversion.source import Source, SourceOptions, SourcePart

__all__ = [
    "ConversionProgress",
    "Format",
    "Source",
    "SourceOptions",
    "SourcePart",
    "convert",
]
