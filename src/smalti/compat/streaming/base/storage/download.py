"""Downloaders of single files, one class for each kind of store; the stores of `smalti.storage` do the work.

A file appears under its name only when it is complete. Errors are those of stores: `FileNotFoundError` for a file that
is not there, `PermissionError`, `TimeoutError`, else `OSError`; not those of the stores' client libraries.
"""

import importlib.util
import os
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlparse, urlsplit

from smalti.compat.streaming.base.constant import DEFAULT_TIMEOUT
from smalti.compat.streaming.errors import GCSAuthError
from smalti.errors import MissingDependency, StoreAuthError, StoreError
from smalti.redaction import redact_address
from smalti.storage import Store, open_store
from smalti.storage.errors import FaultKind, classify
from smalti.storage.opening import check_address
from smalti.storage.schemes import SCHEME_BY_NAME, load_extra

__all__ = [
    "CloudDownloader",
    "S3Downloader",
    "SFTPDownloader",
    "GCSDownloader",
    "OCIDownloader",
    "AzureDownloader",
    "AzureDataLakeDownloader",
    "HFDownloader",
    "DatabricksUnityCatalogDownloader",
    "DBFSDownloader",
    "AlipanDownloader",
    "LocalDownloader",
    "download_file",
]

BOTOCORE_CLIENT_ERROR_CODES = {"403", "404", "NoSuchKey"}
"""Codes of botocore's errors that MosaicML takes for a missing object; here a missing object is a FileNotFoundError."""
GCS_ERROR_NO_AUTHENTICATION = """\
Either set the environment variables `GCS_KEY` and `GCS_SECRET` or use any of the methods in \
https://cloud.google.com/docs/authentication/external/set-up-adc to set up Application Default \
Credentials. See also https://docs.mosaicml.com/projects/mcli/en/latest/resources/secrets/gcp.html.
"""
"""Beginning of the error where there are no credentials of Google, with MosaicML's words."""
UNITY_CATALOG = "dbfs:/Volumes"
NO_ALIPAN = "alipan:// is not supported: Smalti has no store for it; copy the data set to a folder or another store"


class CloudDownloader(ABC):
    """Base of the downloaders.

    A subclass in your own code must define `_client_identifier`, `_download_file_impl` and `clean_up`, and needs an
    entry in `DOWNLOADER_MAPPINGS`.
    """

    @classmethod
    def get(cls, remote_dir: str | None = None) -> "CloudDownloader":
        """Return a downloader for addresses such as this one; for local files without one.

        Raises:
            ValueError: the address has an unknown scheme.
            ImportError: the client that it needs is not installed.
        """
        if remote_dir is None:
            return LocalDownloader()
        prefix = "dbfs-uc" if remote_dir.startswith(UNITY_CATALOG) else urlparse(remote_dir).scheme
        if prefix not in DOWNLOADER_MAPPINGS:
            raise ValueError(
                f"Unsupported remote path: {redact_address(remote_dir)}; expected a path or one of the schemes "
                f"{', '.join(filter(None, DOWNLOADER_MAPPINGS))}."
            )
        return DOWNLOADER_MAPPINGS[prefix]()

    @classmethod
    def direct_download(cls, remote: str | None, local: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Download one file with a downloader that is not used again; see `download`."""
        downloader = cls.get(remote)
        downloader.download(remote, local, timeout)
        downloader.clean_up()

    def download(self, remote: str | None, local: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Download one file; a no-op if the local one exists.

        Args:
            remote: Address of the file.
            local: Path of the copy; its folder is made.
            timeout: Longest time without bytes, seconds.

        Raises:
            ValueError: there is neither a local file nor an address, or the address is of another scheme.
            OSError: the file is not there, or the store failed.
        """
        if os.path.exists(local):  # noqa: PTH110 - a path as MosaicML's callers pass it
            return
        if not remote:
            raise ValueError(
                "In the absence of local dataset, path to remote dataset must be provided: there is no file "
                f"{local!r}, and no address to download it from."
            )
        Path(local).parent.mkdir(parents=True, exist_ok=True)
        self._validate_remote_path(remote)
        self._download_file_impl(remote, local, timeout)

    @staticmethod
    @abstractmethod
    def _client_identifier() -> str:
        """Return the scheme of the addresses."""

    @abstractmethod
    def clean_up(self) -> None:
        """Release the connections; the downloader can be used again."""

    @abstractmethod
    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        """Download one file, whose address was checked."""

    def _validate_remote_path(self, remote: str) -> None:
        scheme = urlparse(remote).scheme
        if scheme != self._client_identifier():
            raise ValueError(
                f"Expected remote path to start with url scheme of `{self._client_identifier()}`, got "
                f"{redact_address(remote)}."
            )


class _StoreDownloader(CloudDownloader):
    """A downloader from the stores of one scheme."""

    _prefix: ClassVar[str]
    """Scheme of the addresses."""
    _scheme: ClassVar[str | None] = None
    """Name of the engine's scheme, where it is not the prefix; its client must be installed, and is not imported yet.

    "" needs none.
    """

    def __init__(self) -> None:
        scheme = self._prefix if self._scheme is None else self._scheme
        for package in SCHEME_BY_NAME[scheme].packages if scheme else ():
            if importlib.util.find_spec(package.partition(".")[0]) is None:
                load_extra(package)
        self._stores: dict[tuple[str, float], Store] = {}

    @classmethod
    def _client_identifier(cls) -> str:
        return cls._prefix

    def clean_up(self) -> None:
        """Release the connections; the downloader can be used again."""
        self._stores.clear()

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        folder, slash, name = remote.rpartition("/")
        place = (folder or slash or ".", timeout)
        if place not in self._stores:
            self._stores[place] = self._open(*place)
        part = Path(f"{local}.{secrets.token_hex(4)}.tmp")
        try:
            with part.open("xb") as file:
                self._stores[place].fetch(name, file)
            part.replace(local)
        finally:
            part.unlink(missing_ok=True)

    def _open(self, folder: str, timeout: float) -> Store:
        return open_store(folder, {"request_timeout": timeout})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": {}}


class S3Downloader(_StoreDownloader):
    """Downloads from AWS S3, and from stores with its protocol."""

    _prefix = "s3"


class SFTPDownloader(_StoreDownloader):
    """Downloads from SFTP servers; a password in the address is handed on as an option, so that no message shows it."""

    _prefix = "sftp"

    def _validate_remote_path(self, remote: str) -> None:
        super()._validate_remote_path(remote)
        url = urlsplit(remote)
        if url.hostname is None:
            raise ValueError("If specifying a URI, the URI must include the hostname; found none.")
        if url.query or url.fragment:
            raise ValueError("Query and fragment parameters are not supported as part of a URI; remove them.")

    def _open(self, folder: str, timeout: float) -> Store:
        url = urlsplit(folder)
        options: dict[str, Any] = {"request_timeout": timeout}
        if url.password is not None:
            options["password"] = unquote(url.password)
        user, at, host = url.netloc.rpartition("@")
        return open_store(url._replace(netloc=f"{user.partition(':')[0]}{at}{host}").geturl(), options)


class GCSDownloader(_StoreDownloader):
    """Downloads from Google Cloud Storage."""

    _prefix = "gs"

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        try:
            super()._download_file_impl(remote, local, timeout)
        except StoreAuthError as error:
            raise gcs_error(error) from error


def gcs_error(error: StoreAuthError) -> GCSAuthError:
    """Return the error for Google's credentials, which begins with MosaicML's text where there are none."""
    start = GCS_ERROR_NO_AUTHENTICATION if classify(error) is FaultKind.NO_CREDENTIALS else ""
    return GCSAuthError(f"{start}{error.message}", **error.facts)


class OCIDownloader(_StoreDownloader):
    """Downloads from Oracle Cloud Infrastructure, through its protocol of S3."""

    _prefix = "oci"


class HFDownloader(_StoreDownloader):
    """Downloads from data sets on the Hugging Face Hub."""

    _prefix = "hf"


class AzureDownloader(_StoreDownloader):
    """Downloads from Azure Blob Storage: azure://<account>.blob.core.windows.net/<container>/<blob>."""

    _prefix = "azure"
    _scheme = "abfs"


class AzureDataLakeDownloader(_StoreDownloader):
    """Downloads from Azure Data Lake: azure-dl://<container>/<file>."""

    _prefix = "azure-dl"
    _scheme = "abfs"


class DatabricksUnityCatalogDownloader(_StoreDownloader):
    """Downloads from volumes of Databricks Unity Catalog."""

    _prefix = "dbfs-uc"
    _scheme = "dbfs"

    def _validate_remote_path(self, remote: str) -> None:
        if not f"{remote}/".startswith(f"{UNITY_CATALOG}/"):
            raise ValueError(
                f"Expected path prefix to be `{UNITY_CATALOG}` if it is a Databricks Unity Catalog, instead, got "
                f"{redact_address(remote)}."
            )


class DBFSDownloader(_StoreDownloader):
    """Downloads from the Databricks File System."""

    _prefix = "dbfs"


class AlipanDownloader(_StoreDownloader):
    """A downloader whose downloads raise an ImportError: there is no store for Alipan."""

    _prefix = "alipan"
    _scheme = ""

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:  # noqa: ARG002 - the base's
        check_alipan(remote)
        raise MissingDependency(f"{remote}: {NO_ALIPAN}.")


def check_alipan(remote: str) -> None:
    """Check the form of an address alipan:///path.

    Raises:
        ValueError: it has another scheme, or a host.
    """
    url = urlparse(remote)
    if url.scheme != "alipan":
        raise ValueError(f"Expected obj.scheme to be `alipan`, instead, got {url.scheme} for remote={remote}")
    if url.netloc:
        raise ValueError(f"Expected remote to be alipan:///path/to/some, instead, got remote={remote}")


class LocalDownloader(_StoreDownloader):
    """Copies from local folders."""

    _prefix = ""


def _register_cloud_downloader_subclasses() -> dict[str, type[CloudDownloader]]:
    """Return the downloaders that are defined by now, by scheme."""
    kinds = [*_StoreDownloader.__subclasses__(), *CloudDownloader.__subclasses__()]
    return {kind._client_identifier(): kind for kind in kinds if kind is not _StoreDownloader}


DOWNLOADER_MAPPINGS = _register_cloud_downloader_subclasses()
"""The downloaders by scheme; `dbfs-uc` stands for dbfs:/Volumes."""


class EngineDownloader(LocalDownloader):
    """Downloads from every store that the engine knows."""

    def _validate_remote_path(self, remote: str) -> None:
        check_address(remote)


def downloader_of(remote: str | None) -> CloudDownloader:
    """Return the downloader of an address, which may be one of the user's.

    Raises:
        ValueError: neither a downloader nor the engine knows the address.
    """
    if not remote or urlsplit(remote).scheme in DOWNLOADER_MAPPINGS:
        return CloudDownloader.get(remote)
    try:
        check_address(remote)
    except StoreError as error:  # an OSError, and MosaicML raises ValueError
        raise ValueError(f"Unsupported remote path: {error.message}") from error
    return EngineDownloader()


def download_file(remote: str | None, local: str, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Download one file, as `CloudDownloader.direct_download` does; the name in earlier releases of MosaicML's."""
    CloudDownloader.direct_download(remote, local, timeout)
