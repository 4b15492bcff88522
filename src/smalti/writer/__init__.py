"""Writing shard sets: samples in, uploaded and published shards out. Bytes are made in `smalti.format`."""

from smalti.writer.mds import MDSWriter
from smalti.writer.queue import UploadOptions
from smalti.writer.uploader import ShardUploader

__all__ = ["MDSWriter", "ShardUploader", "UploadOptions"]
