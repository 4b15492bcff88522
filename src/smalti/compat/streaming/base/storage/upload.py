"""Uploaders of single files, one class for each kind of store; the stores of `smalti.storage` do the work.

An uploader has a local folder, in which a program writes files, and mostly a remote one, to which it then uploads
them. Writers of data sets do not use it. Errors are those of stores, as in `download`.
"""

import logging
import os
import sys
from enum import Enum
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlparse

from smalti.compat.streaming.base.storage.download import (
    NO_ALIPAN,
    UNITY_CATALOG,
    check_alipan,
    gcs_error,
)
from smalti.compat.streaming.errors import ReadOnlyStoreError
from smalti.errors import MissingDependency, StoreAuthError, StoreNotFound
from smalti.redaction import redact_address
from smalti.storage import FsspecStore, LocalStore, Store, open_store
from smalti.storage.store import join_key
from smalti.writer.progress import ProgressLine

logger = logging.getLogger(__name__.removeprefix("smalti.compat."))
Out = str | tuple[str, str]

__all__ = [
    "CloudUploader",
    "S3Uploader",
    "GCSUploader",
    "OCIUploader",
    "HFUploader",
    "AzureUploader",
    "AzureDataLakeUploader",
    "DatabricksUnityCatalogUploader",
    "DBFSUploader",
    "AlipanUploader",
    "LocalUploader",
]

UPLOADERS = {
    "s3": "S3Uploader",
    "gs": "GCSUploader",
    "oci": "OCIUploader",
    "hf": "HFUploader",
    "azure": "AzureUploader",
    "azure-dl": "AzureDataLakeUploader",
    UNITY_CATALOG: "DatabricksUnityCatalogUploader",
    "dbfs": "DBFSUploader",
    "alipan": "AlipanUploader",
    "": "LocalUploader",
}
"""Names of the classes by scheme."""
ENCRYPTIONS = ("No", "Simple", "ChaCha20", "AES256CBC")
"""Values of ALIPAN_ENCRYPT_TYPE."""


class GCSAuthentication(Enum):
    """Kinds of Google's credentials."""

    HMAC = 1
    """GCS_KEY and GCS_SECRET in the environment."""
    SERVICE_ACCOUNT = 2
    """Google's application default credentials."""


class CloudUploader:
    """Base of the uploaders, which upload nothing itself.

    Args:
        out: Local folder; or a URL, with a temporary local folder; or a pair (local, remote).
        keep_local: Whether local files remain after they were uploaded.
        progress_bar: Whether each upload is reported on stderr.
        retry: Attempts at each upload, from 1.
        exist_ok: Whether the local folder may have contents.

    Raises:
        ValueError: `out` is no address and no pair, or has an unknown scheme.
        FileExistsError: the local folder has contents.
        FileNotFoundError: the local folder is an empty string.
    """

    local: str
    """The local folder."""
    remote: str | None
    """Address of the remote folder; None without one."""

    @classmethod
    def get(
        cls,
        out: Out,
        keep_local: bool = False,  # noqa: FBT001, FBT002 - MosaicML's signature
        progress_bar: bool = False,  # noqa: FBT001, FBT002 - MosaicML's signature
        retry: int = 2,
        exist_ok: bool = False,  # noqa: FBT001, FBT002 - MosaicML's signature
    ) -> Any:
        """Return an uploader for this kind of store; arguments and errors are those of the class."""
        remote = _check_out(out)
        scheme = UNITY_CATALOG if f"{remote}/".startswith(f"{UNITY_CATALOG}/") else urlparse(remote).scheme
        kind = getattr(sys.modules[__name__], UPLOADERS[scheme])
        return kind(out, keep_local, progress_bar, retry, exist_ok)

    def __init__(
        self,
        out: Out,
        keep_local: bool = False,  # noqa: FBT001, FBT002 - MosaicML's signature
        progress_bar: bool = False,  # noqa: FBT001, FBT002 - MosaicML's signature
        retry: int = 2,
        exist_ok: bool = False,  # noqa: FBT001, FBT002 - MosaicML's signature
    ) -> None:
        remote = _check_out(out)
        self._check_remote(remote)
        self.keep_local = keep_local
        self.progress_bar = progress_bar
        self.retry = retry
        is_remote = isinstance(out, str) and bool(urlparse(out).scheme)
        self.local = "" if is_remote else os.fspath(out if isinstance(out, str) else out[0])
        self.remote = remote if is_remote or not isinstance(out, str) else None
        if not is_remote:
            if not self.local:
                raise FileNotFoundError("the local folder is empty (''): expected a path; the working folder is '.'.")
            folder = Path(self.local)
            if folder.exists() and any(folder.iterdir()):
                if not exist_ok:
                    raise FileExistsError(
                        f"Directory is not empty: {self.local}; choose another one, empty it, or pass exist_ok=True."
                    )
                logger.warning(
                    "Directory %s exists and is not empty; it is used all the same (exist_ok=True).", self.local
                )
        self._connect()
        if is_remote:
            self.local = mkdtemp()
        else:
            Path(self.local).mkdir(parents=True, exist_ok=True)

    def _check_remote(self, remote: str) -> None:
        """Check the remote address, before anything is made."""

    def _connect(self) -> None:
        """Open the remote place, and check that it can be written to."""

    def upload_file(self, filename: str) -> None:
        """Upload one file of the local folder; `filename` is relative to it.

        Raises:
            NotImplementedError: this class does not upload.
        """
        raise NotImplementedError(f"{type(self).__name__}.upload_file is not implemented")

    def list_objects(self, prefix: str | None = None) -> list[str] | None:
        """Return the names of all files below the remote folder that begin with `prefix` there.

        Raises:
            NotImplementedError: this class does not list.
        """
        raise NotImplementedError(f"{type(self).__name__}.list_objects is not implemented")

    def clear_local(self, local: str) -> None:
        """Remove a local file unless `keep_local`."""
        if not self.keep_local and Path(local).is_file():
            Path(local).unlink()


def _check_out(out: Out) -> str:
    """Return the remote part of `out`, or the local one if there is only that."""
    if not isinstance(out, str) and len(out) != 2:
        raise ValueError(
            f"Invalid `out` argument. It is either a string of local/remote directory or a list of two strings with "
            f"[local, remote]; found {out!r}."
        )
    remote = out if isinstance(out, str) else out[1]
    scheme = urlparse(remote).scheme
    if scheme not in UPLOADERS:
        raise ValueError(
            f"Invalid Cloud provider prefix: {scheme}. Expected a path or one of {', '.join(filter(None, UPLOADERS))}."
        )
    return remote


class _StoreUploader(CloudUploader):
    """An uploader to the stores of one scheme."""

    _store: Store

    def _connect(self) -> None:
        if self.remote is None:
            raise ValueError(f"{type(self).__name__} needs a remote directory, found the local one {self.local!r}.")
        self._store = self._open(self.remote)
        self._check()

    def _open(self, remote: str) -> Store:
        return open_store(remote, {"request_attempts": max(self.retry, 1)})  # 0 is an error of each upload

    def _check(self) -> None:
        """Check that the remote place can be written to."""
        self._store.check_bucket()

    def upload_file(self, filename: str) -> None:
        """Upload one file of the local folder; `filename` is relative to it.

        Raises:
            ValueError: `retry` is less than 1.
            OSError: the local file is not there, or the store failed.
        """
        if self.retry < 1:
            raise ValueError(f"num_attempts must be at-least 1, found retry={self.retry}.")
        local = Path(self.local, filename)
        self._store.put_file(Path(filename).as_posix(), local)
        if self.progress_bar:
            ProgressLine(sys.stderr).close(f"Uploaded {self._store.locate(filename)}, {local.stat().st_size} bytes")
        self.clear_local(str(local))

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Return the names of all files of the remote folder that begin with `prefix` there, sorted.

        Names are keys in the bucket or container, as in MosaicML for S3, GCS and OCI; other stores list here too.
        """
        start, store = prefix or "", self._store
        root = store.url if isinstance(store, LocalStore) else store.root if isinstance(store, FsspecStore) else ""
        inside = (
            root if root.startswith("/") else root.partition("/")[2]
        )  # what comes after the bucket, if there is one
        listed = store.list(start.rpartition("/")[0])
        return [join_key(inside, info.key) for info in listed if info.key.startswith(start)]


class _BucketUploader(_StoreUploader):
    """An uploader to buckets or containers, with MosaicML's method `check_bucket_exists`."""

    def check_bucket_exists(self, remote: str) -> None:
        """Check that the bucket of an address exists.

        Raises:
            FileNotFoundError: it does not.
            PermissionError: the credentials do not allow to look it up.
        """
        try:
            self._open(remote).check_bucket()
        except StoreNotFound as error:
            raise StoreNotFound(
                f"{redact_address(remote)}: the bucket does not exist, or may not be looked up; create it, or check "
                "the bucket permission",
                **error.facts,
            ) from error

    def _check(self) -> None:
        self.check_bucket_exists(str(self.remote))


class S3Uploader(_BucketUploader):
    """Uploads to AWS S3, and to stores with its protocol; arguments and errors are those of `CloudUploader`."""


class GCSUploader(_BucketUploader):
    """Uploads to Google Cloud Storage; arguments and errors are those of `CloudUploader`."""

    def _connect(self) -> None:
        has_key = {"GCS_KEY", "GCS_SECRET"} <= os.environ.keys()
        self.authentication = GCSAuthentication.HMAC if has_key else GCSAuthentication.SERVICE_ACCOUNT
        super()._connect()

    def check_bucket_exists(self, remote: str) -> None:
        """Check that the bucket of an address exists.

        Raises:
            FileNotFoundError: it does not.
            ValueError: there are no credentials, or they are refused.
        """
        try:
            super().check_bucket_exists(remote)
        except StoreAuthError as error:
            raise gcs_error(error) from error


class OCIUploader(_BucketUploader):
    """Uploads to Oracle Cloud Infrastructure; arguments and errors are those of `CloudUploader`."""


class AzureUploader(_BucketUploader):
    """Uploads to Azure Blob Storage; arguments and errors are those of `CloudUploader`.

    MosaicML's uploader and downloader read addresses differently; both forms are known here:
    azure://<container>/<prefix>, with the account in AZURE_ACCOUNT_NAME, and
    azure://<account>.blob.core.windows.net/<container>/<prefix>.
    """

    def _open(self, remote: str) -> Store:
        scheme, _, rest = remote.partition("://")
        is_container = scheme == "azure" and "." not in rest.partition("/")[0]
        return super()._open(f"abfs://{rest}" if is_container else remote)


class AzureDataLakeUploader(_StoreUploader):
    """Uploads to Azure Data Lake; arguments and errors are those of `CloudUploader`."""

    def check_container_exists(self, remote: str) -> None:
        """Check that the container of an address exists.

        Raises:
            FileNotFoundError: it does not.
        """
        self._open(remote).check_bucket()

    def _check(self) -> None:
        self.check_container_exists(str(self.remote))


class HFUploader(CloudUploader):
    """An uploader that cannot be created: an upload to the Hub is a commit, and a data set would need thousands."""

    def _check_remote(self, remote: str) -> None:
        if urlparse(remote).scheme != "hf":
            raise ValueError(f"Expected remote path to start with `hf://`, got {remote}.")
        raise ReadOnlyStoreError(
            f"{remote}: hf:// is read only here, because each file would be a commit, more than the Hub allows; write "
            "the set to a folder, and store that in one commit: hf upload <owner>/<name> <folder> --repo-type dataset"
        )

    def check_dataset_exists(self) -> None:
        """Raise the error of the constructor."""
        raise ReadOnlyStoreError("hf:// is read only here")


class DatabricksUploader(_StoreUploader):
    """Base of the uploaders to Databricks workspaces."""


class DatabricksUnityCatalogUploader(DatabricksUploader):
    """Uploads to volumes of Databricks Unity Catalog; arguments and errors are those of `CloudUploader`."""


class DBFSUploader(DatabricksUploader):
    """Uploads to the Databricks File System; arguments and errors are those of `CloudUploader`."""

    def _connect(self) -> None:
        self.dbfs_path = str(self.remote).removeprefix("dbfs:")
        super()._connect()

    def _check(self) -> None:
        self.check_folder_exists()

    def check_folder_exists(self) -> None:
        """Check that the remote folder exists.

        Raises:
            FileNotFoundError: it does not.
            PermissionError: the credentials do not allow to look it up.
        """
        try:
            self._store.check_folder()
        except StoreNotFound as error:
            raise StoreNotFound(
                f"Databricks File System path {self.dbfs_path} not found: make the folder, or check the address",
                **error.facts,
            ) from error


class AlipanUploader(CloudUploader):
    """An uploader that cannot be created: address and environment are checked, but there is no store for Alipan."""

    def _check_remote(self, remote: str) -> None:
        check_alipan(remote)
        encryption = os.environ.get("ALIPAN_ENCRYPT_TYPE", "") or ENCRYPTIONS[0]
        if encryption not in ENCRYPTIONS:
            raise ValueError(
                f"Invalid ALIPAN_ENCRYPT_TYPE: {encryption}. Encryption type must be one of "
                f"{', '.join(f'`{name}`' for name in ENCRYPTIONS[1:])}."
            )
        raise MissingDependency(f"{remote}: {NO_ALIPAN}.")

    def check_token(self) -> None:
        """Raise the error of the constructor."""
        raise MissingDependency(NO_ALIPAN)


class LocalUploader(_StoreUploader):
    """Copies from one local folder to another; arguments and errors are those of `CloudUploader`.

    Without a remote folder, uploads do nothing.
    """

    def _connect(self) -> None:
        if self.remote:
            self._store = self._open(self.remote)
            Path(self.remote).mkdir(parents=True, exist_ok=True)

    def upload_file(self, filename: str) -> None:
        """Copy one file to the remote folder; a no-op without one."""
        if self.remote:
            super().upload_file(filename)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Return the paths of all files below the local folder that begin with `prefix` there, sorted."""
        start = os.path.join(self.local, prefix or "")  # noqa: PTH118 - keeps a trailing slash
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.local) for name in names]  # noqa: PTH118
        return sorted(path for path in found if path.startswith(start))
