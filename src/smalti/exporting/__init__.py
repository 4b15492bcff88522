"""Export: a version of a shard set, or parts of it, as WebDataset tar files or Parquet files with the same values.

`steps` has the public function, its steps and the record that it keeps in the target; `parquet` and `webdataset` write
one file each. Reading such files is done by `smalti.conversion`.
"""

from smalti.exporting.steps import ExportReport, export

__all__ = ["ExportReport", "export"]
