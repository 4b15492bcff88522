"""Azure Blob Storage by adlfs, with the credentials under Azure's own names or under MosaicML's."""

import functools
import importlib
from typing import Any

from smalti.storage.azure_login import Login, default_login, service_principal
from smalti.storage.extras import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS, detect, load_extra
from smalti.storage.interface import Tagged

LOGINS = ("connection_string", "account_key", "sas_token", "credential", "client_id")
"""Options any of which says who we are."""


def make(options: dict[str, Any]) -> Any:
    """A file system for Azure Blob Storage."""
    defaults: dict[str, Any] = {
        "anon": False,  # adlfs's own default may be anonymous access
        "connection_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
    fallback = options.pop("fallback_account", None)
    if not any(options.get(name) for name in LOGINS) and not options.get("anon"):
        options = _login_from_environment() | {name: value for name, value in options.items() if value is not None}
    if fallback and not options.get("connection_string"):
        options.setdefault("account_name", fallback)
    return _class()(**(defaults | options))


def _login_from_environment() -> dict[str, Any]:
    """What the environment says; what adlfs would read itself is named here too, so that one order holds for all."""
    connection = detect("AZURE_STORAGE_CONNECTION_STRING")
    if connection:
        return {"connection_string": connection}
    found = {
        "account_name": detect("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME"),
        "account_key": detect("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY"),
        "sas_token": detect("AZURE_STORAGE_SAS_TOKEN"),
    }
    return {name: value for name, value in found.items() if value}


@functools.cache
def _class() -> Any:
    adlfs = load_extra("adlfs")

    class BoundedAzureFileSystem(adlfs.AzureBlobFileSystem):  # type: ignore[misc, name-defined]
        """adlfs with few retries: the SDK's own take a minute and a half, and adlfs has no option for them.

        And with one credential of Azure identity where adlfs makes two, of which one is never used or closed.
        """

        def do_connect(self) -> None:
            super().do_connect()
            policy = getattr(getattr(self.service_client, "_config", None), "retry_policy", None)
            if policy is not None:
                policy.total_retries = LIBRARY_ATTEMPTS - 1
                policy.initial_backoff = 0.5
                policy.increment_base = 2

        def _get_default_azure_credential(self, **options: Any) -> tuple[Login, None]:
            return default_login(options), None

        def _get_credential_from_service_principal(self) -> tuple[Login, None]:
            return service_principal(self.tenant_id, self.client_id, self.client_secret), None

        async def _get_tagged(self, path: str) -> Tagged:
            container, blob, _ = self.split_path(path)
            async with self.service_client.get_blob_client(container=container, blob=blob) as client:
                stream = await client.download_blob(**self._timeout_kwargs)
                return Tagged(bytes(await stream.readall()), str(stream.properties.etag))

        async def _put_if_match(self, path: str, data: bytes, etag: str) -> str:
            container, blob, _ = self.split_path(path)
            conditions = importlib.import_module("azure.core").MatchConditions
            async with self.service_client.get_blob_client(container=container, blob=blob) as client:
                answer = await client.upload_blob(
                    data=data,
                    overwrite=True,
                    etag=etag,
                    match_condition=conditions.IfNotModified,
                    **self._timeout_kwargs,
                )
                return str(answer["etag"])

    return BoundedAzureFileSystem
