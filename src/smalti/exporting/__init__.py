"""Export: a version of a shard set, or parts of it, as WebDataset tar files or Parquet files with the same values.

`steps` has the public function, its steps, the record that it keeps in the target, and the writing of a Parquet file;
`webdataset` writes a tar file. Reading such files is done by `smalti.conversion`.
"""

from smalti.exporting.steps import ExportReport, export

__all__ = ["ExportReport", "export"]
