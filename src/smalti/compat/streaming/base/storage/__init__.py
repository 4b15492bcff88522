"""MosaicML's downloaders and uploaders of single files, as thin classes over the stores of `smalti.storage`.

Data sets do not use them: streams and writers have stores of their own. Read `download` first.
"""

from smalti.compat.streaming.base.storage.download import AlipanDownloader as AlipanDownloader
from smalti.compat.streaming.base.storage.download import AzureDataLakeDownloader as AzureDataLakeDownloader
from smalti.compat.streaming.base.storage.download import AzureDownloader as AzureDownloader
from smalti.compat.streaming.base.storage.download import CloudDownloader as CloudDownloader
from smalti.compat.streaming.base.storage.download import (
    DatabricksUnityCatalogDownloader as DatabricksUnityCatalogDownloader,
)
from smalti.compat.streaming.base.storage.download import DBFSDownloader as DBFSDownloader
from smalti.compat.streaming.base.storage.download import GCSDownloader as GCSDownloader
from smalti.compat.streaming.base.storage.download import HFDownloader as HFDownloader
from smalti.compat.streaming.base.storage.download import LocalDownloader as LocalDownloader
from smalti.compat.streaming.base.storage.download import OCIDownloader as OCIDownloader
from smalti.compat.streaming.base.storage.download import S3Downloader as S3Downloader
from smalti.compat.streaming.base.storage.download import SFTPDownloader as SFTPDownloader
from smalti.compat.streaming.base.storage.download import download_file as download_file
from smalti.compat.streaming.base.storage.upload import AzureDataLakeUploader as AzureDataLakeUploader
from smalti.compat.streaming.base.storage.upload import AzureUploader as AzureUploader
from smalti.compat.streaming.base.storage.upload import CloudUploader as CloudUploader
from smalti.compat.streaming.base.storage.upload import GCSUploader as GCSUploader
from smalti.compat.streaming.base.storage.upload import HFUploader as HFUploader
from smalti.compat.streaming.base.storage.upload import LocalUploader as LocalUploader
from smalti.compat.streaming.base.storage.upload import OCIUploader as OCIUploader
from smalti.compat.streaming.base.storage.upload import S3Uploader as S3Uploader
