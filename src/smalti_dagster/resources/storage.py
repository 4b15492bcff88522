"""The storage resource: one root address, how to reach it, and the places below it where the assets keep things.

`StorageResource` is what assets ask for; `storage_class` finds the concrete class by the scheme of an address. Their
fields are named as in Dagster's own integrations (dagster-aws, -gcp, -azure, -databricks). Secrets are given as
`dg.EnvVar` or left out, and then the service's own chain of credentials decides.
"""

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import dagster as dg
from pydantic import Field

from smalti.storage import Store, open_store
from smalti.storage.opening import service_of
from smalti.storage.schemes import SCHEMES
from smalti_dagster.runs.lifetime import RunBoundResource

STAGE_TAG = "smalti/stage"
"""Tag of every run: the stage whose storage it used."""


class StorageResource(RunBoundResource, ABC):
    """The place of everything that is kept: images, tables, shard sets, checkpoints, models and reports."""

    schemes: ClassVar[tuple[str, ...]] = ()
    """Canonical names of the schemes whose addresses this class is for; "" is a path."""

    root: str = Field(description="Address of the folder that holds everything.")
    stage: str = Field(default="local", description="Recorded in the tags of every run.")
    retry_seconds: float = Field(
        default=30.0,
        ge=0,
        description="Before a step is executed again after an outage; four times as long thereafter.",
    )

    def url(self, *parts: str) -> str:
        """Return the address of a place below the root, for `open_store` and everything else in the library."""
        return "/".join([self.root.rstrip("/"), *parts])

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return `storage_options` for the library: what fsspec needs beside the address. Secret: never log them."""

    def options_for(self, url: str) -> dict[str, Any]:
        """Return `storage_options` for another address: ours if it is on the same service, else none."""
        return self.options() if service_of(url) == service_of(self.root) else {}

    def store(self, *parts: str) -> Store:
        """Return the library's store at a place below the root."""
        return open_store(self.url(*parts), self.options())

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Tag the run with the stage."""
        super().setup_for_execution(context)
        if context.instance is not None and context.run is not None and STAGE_TAG not in context.run.tags:
            context.instance.add_run_tags(context.run.run_id, {STAGE_TAG: self.stage})

    def refuse_other_stage(self, instance: dg.DagsterInstance, assets: Iterable[dg.AssetKey]) -> None:
        """Return if no run of another stage has made these assets last, whose versions and addresses would be used.

        Code locations whose assets have other keys may share an instance, each with a stage and storage of its own.

        Raises:
            dg.Failure: an asset was made in another stage.
        """
        seen = {stage for _, stages in instance.get_run_tags(tag_keys=[STAGE_TAG]) for stage in stages}
        if seen <= {self.stage}:
            return
        for asset in sorted(assets):
            event = instance.get_latest_materialization_event(asset)
            run = instance.get_run_by_id(event.run_id) if event is not None else None
            stage = run.tags.get(STAGE_TAG, self.stage) if run is not None else self.stage
            if run is not None and stage != self.stage:
                raise dg.Failure(
                    f"asset {asset.to_user_string()} was made by run {run.run_id} of the stage {stage}, and this "
                    f"process is of the stage {self.stage}: give each stage a Dagster instance of its own "
                    "(DAGSTER_HOME), or data of both would be mixed",
                    allow_retries=False,
                )


class LocalStorage(StorageResource):
    """A folder on this machine, or one that every machine mounts."""

    schemes = ("",)

    def options(self) -> dict[str, Any]:
        """Return no options: a path needs none."""
        return {}


class S3Storage(StorageResource):
    """S3, or with `endpoint_url` a service that speaks its protocol (MinIO, Ceph, R2, B2, CoreWeave)."""

    schemes = ("s3",)

    region_name: str | None = None
    endpoint_url: str | None = Field(default=None, description="URL of a compatible service; AWS when empty.")
    profile_name: str | None = Field(default=None, description="Profile of AWS's configuration files.")
    aws_access_key_id: str | None = Field(default=None, description="AWS's own chain when empty.")
    aws_secret_access_key: str | None = None
    aws_session_token: str | None = None
    use_unsigned_session: bool = Field(default=False, description="Anonymous requests, for public buckets.")

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of s3fs."""
        client = _given(region_name=self.region_name)
        return _given(
            key=self.aws_access_key_id,
            secret=self.aws_secret_access_key,
            token=self.aws_session_token,
            profile=self.profile_name,
            endpoint_url=self.endpoint_url,
            client_kwargs=client or None,
            anon=self.use_unsigned_session or None,
        )


class OciStorage(S3Storage):
    """Oracle Object Storage, by its S3-compatible service: oci://bucket@namespace/prefix, and a customer secret key."""

    schemes = ("oci",)


class GcsStorage(StorageResource):
    """Google Cloud Storage."""

    schemes = ("gs",)

    project: str | None = None
    gcp_credentials: str | None = Field(
        default=None, description="Content of a service account's key file in base64; default credentials when empty."
    )
    token: str | None = Field(default=None, description="Path of a key file, in place of `gcp_credentials`.")
    endpoint_url: str | None = Field(default=None, description="URL of an emulator or a private endpoint.")
    anonymous: bool = Field(default=False, description="Requests without credentials, for public buckets.")
    hmac_key: str | None = Field(default=None, description="HMAC key, for Google's S3-compatible endpoint.")
    hmac_secret: str | None = None

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of gcsfs."""
        token: Any = "anon" if self.anonymous else self.token
        if self.gcp_credentials and token is None:
            token = json.loads(base64.b64decode(self.gcp_credentials))
        return _given(
            project=self.project,
            token=token,
            endpoint_url=self.endpoint_url,
            key=self.hmac_key,
            secret=self.hmac_secret,
        )


class AzureKey(dg.Config):
    """The key of a storage account."""

    credential_type: Literal["key"] = "key"
    key: str


class AzureSasToken(dg.Config):
    """A shared access signature."""

    credential_type: Literal["sas"] = "sas"
    token: str


class AzureConnectionString(dg.Config):
    """A connection string, which names the account too."""

    credential_type: Literal["connection_string"] = "connection_string"
    connection_string: str


class AzureDefaultCredential(dg.Config):
    """Azure identity: a managed identity, a workload, a service principal, or `az login`."""

    credential_type: Literal["default_azure_credential"] = "default_azure_credential"
    kwargs: dict[str, Any] = Field(default={}, description="Arguments of azure.identity.DefaultAzureCredential.")


class AzureAnonymous(dg.Config):
    """No credentials, for public containers."""

    credential_type: Literal["anonymous"] = "anonymous"


class AzureStorage(StorageResource):
    """Azure Blob Storage or Data Lake Storage, generation 2."""

    schemes = ("abfs", "azure")

    storage_account: str | None = Field(default=None, description="Needed unless the address or credential names it.")
    credential: AzureKey | AzureSasToken | AzureConnectionString | AzureDefaultCredential | AzureAnonymous = Field(
        default=AzureDefaultCredential(), discriminator="credential_type"
    )

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of adlfs."""
        return _given(account_name=self.storage_account) | self._login()

    def _login(self) -> dict[str, Any]:
        given = self.credential
        if isinstance(given, AzureKey):
            return {"account_key": given.key}
        if isinstance(given, AzureSasToken):
            return {"sas_token": given.token}
        if isinstance(given, AzureConnectionString):
            return {"connection_string": given.connection_string}
        return {"anon": True} if isinstance(given, AzureAnonymous) else {"anon": False, **given.kwargs}


class VolumesStorage(StorageResource):
    """A Unity Catalog volume on Databricks: dbfs:/Volumes/catalog/schema/volume/prefix."""

    schemes = ("dbfs",)

    host: str | None = Field(default=None, description="Workspace URL; the SDK's own chain of logins when empty.")
    token: str | None = Field(default=None, description="Access token.")
    client_id: str | None = Field(default=None, description="Service principal (OAuth), in place of a token.")
    client_secret: str | None = None

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of the Databricks SDK's `Config`."""
        return _given(host=self.host, token=self.token, client_id=self.client_id, client_secret=self.client_secret)


class FsspecStorage(StorageResource):
    """Any other service that the library opens, such as sftp://, with the options of its file system as they are."""

    storage_options: dict[str, Any] = Field(default={}, description="Keyword arguments of the file system.")

    def options(self) -> dict[str, Any]:
        """Return the options as they were given."""
        return dict(self.storage_options)


_OWN: tuple[type[StorageResource], ...] = (
    LocalStorage,
    S3Storage,
    OciStorage,
    GcsStorage,
    AzureStorage,
    VolumesStorage,
)
FsspecStorage.schemes = tuple(
    scheme.name for scheme in SCHEMES if not scheme.is_web and not any(scheme.name in each.schemes for each in _OWN)
)
_CLASSES: tuple[type[StorageResource], ...] = (*_OWN, FsspecStorage)


def storage_class(url: str) -> type[StorageResource]:
    """Return the class of storage resource for an address.

    Raises:
        ValueError: no such scheme, or one that is read only.
    """
    scheme = service_of(url)
    found = next((each for each in _CLASSES if scheme in each.schemes), None)
    if found is None:
        known = ", ".join(
            sorted(f"{name}://" for each in _CLASSES for name in each.schemes if name not in {"", "dbfs"})
        )
        raise ValueError(f"{scheme}:// cannot hold data; expected a path, dbfs:/Volumes/... or one of {known}")
    return found


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, "")}
