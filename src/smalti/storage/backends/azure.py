"""Azure Blob Storage through adlfs, with credentials under Azure's names of variables or under MosaicML's.

Without credentials in options or environment, azure-identity finds them: a managed identity, a workload, a service
principal or `az login`. Its credentials are asynchronous, as adlfs expects; requests for tokens are bounded, and
their errors list what was tried.
"""

import functools
import importlib
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from smalti.errors import StoreAuthError, StoreError
from smalti.storage.backends.bodies import bound_responses
from smalti.storage.backends.network import CA_BUNDLE, PROXY, ca_bundle_of, login_proxies_of, proxies_of
from smalti.storage.options import parameters_of
from smalti.storage.redact import HideSecrets
from smalti.storage.retry import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS
from smalti.storage.schemes import Address, bucket_address, detect, load_extra
from smalti.storage.store import Tagged

CREDENTIAL_OPTIONS = ("connection_string", "account_key", "sas_token", "credential", "client_id")
"""Options any of which determines the credentials."""
TOKEN_RETRIES = 2
"""Retries of one request for a token, with pauses of 1.6 s in all; the library's ten outlast every deadline."""
VARIABLES = {
    "EnvironmentCredential": (
        "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_USERNAME"
    ),
    "WorkloadIdentityCredential": ("AZURE_FEDERATED_TOKEN_FILE",),
    "ManagedIdentityCredential": ("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET"),
    "": ("AZURE_AUTHORITY_HOST", "AZURE_TOKEN_CREDENTIALS"),
}  # fmt: skip
"""Variables that azure-identity reads, by its class of credential; "" is for all of them."""
_LOGGERS = ("_credentials.chained", "_internal.decorators", "_internal.get_token_mixin")
"""Loggers of azure-identity that log replies of token servers as warnings."""
_HIDE_SECRETS = HideSecrets()
_MAX_EXPLANATION = 120  # characters per credential in an error message


def parse_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address of a container.

    Its forms are abfs://container/prefix, abfs://container@account.dfs.core.windows.net/prefix and MosaicML's
    azure://account.blob.core.windows.net/container/prefix, of which AZURE_STORAGE_ACCOUNT_NAME and AZURE_ACCOUNT_NAME
    take precedence over the account.

    Raises:
        StoreError: the container is missing.
    """
    if scheme != "azure":
        container, at, account = host.partition("@")
        if at:
            options.setdefault("account_name", account.split(".")[0])
        return bucket_address(scheme, container, prefix, options)
    url = f"{scheme}://{host}"
    if not prefix:
        raise StoreError(
            f"{url}: the container is missing; expected {scheme}://<account>/<container>/<prefix>", url=url
        )
    options.setdefault("fallback_account", host.split(".", maxsplit=1)[0])
    return Address("abfs", prefix, f"abfs://{prefix}", options)


def fill_options(scheme: str, root: str, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 -- of all schemes
    """Return the options; a contradiction among them is refused before they travel to other processes.

    Raises:
        StoreError: two options contradict each other.
    """
    others = [name for name in (*CREDENTIAL_OPTIONS, "anon") if options.get(name)]
    if options.get("managed_identity") and others:
        raise StoreError(f"storage options of Azure: `managed_identity` is the login itself: leave out `{others[0]}`")
    return dict(options)


def option_names() -> set[str]:
    """Return the names of all options of adlfs, and of azure-identity, which names them in a docstring only."""
    described = _identity().DefaultAzureCredential.__doc__ or ""
    return parameters_of(_class()) | set(re.findall(r":keyword [^:]*?(\w+):", described))


def make(options: dict[str, Any]) -> Any:
    """Make a file system for Azure Blob Storage."""
    network = {name: options.pop(name) for name in (PROXY, CA_BUNDLE) if options.get(name) is not None}
    if options.pop("managed_identity", False):
        client_id = options.pop("managed_identity_client_id", None)
        options["credential"] = Login(_identity().ManagedIdentityCredential(client_id=client_id, **_limits(network)))
        account = detect("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
        if account:
            options.setdefault("account_name", account)
    defaults: dict[str, Any] = {
        "anon": False,  # adlfs's own default may be anonymous access
        "connection_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
    fallback = options.pop("fallback_account", None)
    if not any(options.get(name) for name in CREDENTIAL_OPTIONS) and not options.get("anon"):
        options = _detect_login() | {name: value for name, value in options.items() if value is not None}
    if fallback and not options.get("connection_string"):
        options.setdefault("account_name", fallback)
    return _class()(**(defaults | options), network=network)


def server_of(root: str, options: Mapping[str, Any]) -> str:  # noqa: ARG001 -- the interface of all schemes
    """Return the address of the account; "" if no option and no variable names it."""
    given = {**_detect_login(), **{name: value for name, value in options.items() if value is not None}}
    parts = dict(part.partition("=")[::2] for part in str(given.get("connection_string", "")).split(";"))
    account = given.get("account_name") or parts.get("AccountName") or given.get("fallback_account")
    suffix = parts.get("EndpointSuffix", "core.windows.net")
    return str(
        parts.get("BlobEndpoint")
        or (f"https://{given['account_host']}" if given.get("account_host") else "")
        or (f"https://{account}.blob.{suffix}" if account else "")
    )


def _detect_login() -> dict[str, Any]:
    """Return adlfs's options from the environment; variables that adlfs reads itself too, to have one precedence."""
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
        """adlfs with few retries and conditional puts.

        The SDK's own retries take a minute and a half, and adlfs has no option for them. adlfs also makes two
        credentials of azure-identity, and never uses or closes one of them; this makes one.
        """

        def __init__(self, *args: Any, network: Mapping[str, Any] | None = None, **options: Any) -> None:
            self._network = dict(network or {})
            super().__init__(*args, **options)

        def do_connect(self) -> None:
            super().do_connect()
            _lead_through(self.service_client, self._network)
            policy = getattr(getattr(self.service_client, "_config", None), "retry_policy", None)
            if policy is not None:
                policy.total_retries = LIBRARY_ATTEMPTS - 1
                policy.initial_backoff = 0.5
                policy.increment_base = 2

        def _get_default_azure_credential(self, **options: Any) -> tuple["Login", None]:
            return default_login(options, self._network), None

        def _get_credential_from_service_principal(self) -> tuple["Login", None]:
            names = "tenant_id", "client_id", "client_secret"
            return service_principal({name: getattr(self, name) for name in names}, self._network), None

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


class AzureIdentityError(Exception):
    """azure-identity gave no token; the text lists the credentials that it tried and the variables that are set."""


class Login:
    """A credential of azure-identity whose errors list what was tried."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._failure = load_extra("azure.core.exceptions").ClientAuthenticationError

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """Return an access token, from memory until it expires.

        Raises:
            AzureIdentityError: no credential gave one.
        """
        try:
            return await self._credential.get_token(*scopes, **options)
        except self._failure as error:
            raise AzureIdentityError(_explain(str(error))) from error

    async def close(self) -> None:
        """Close its connections."""
        await self._credential.close()


def _lead_through(client: Any, network: Mapping[str, Any]) -> None:
    """Let a client, and those that it makes, use the proxy and the authorities; adlfs has no options for them.

    They read no more of an answer than they asked for.
    """
    authority, proxies, transport = ca_bundle_of(network), proxies_of(network), client._pipeline._transport
    if authority:
        transport.connection_config.verify = authority
    if proxies:
        client._config.proxy_policy.proxies = proxies
    open_session = transport.open

    async def open_bounded() -> None:
        await open_session()
        bound_responses(transport.session)

    transport.open = open_bounded


def default_login(options: dict[str, Any], network: Mapping[str, Any] | None = None) -> Login:
    """Return the login of this machine, process or user, by `DefaultAzureCredential`.

    Raises:
        MissingDependency: azure-identity is not installed.
    """
    return Login(_identity().DefaultAzureCredential(**(_limits(network) | options)))


def service_principal(arguments: Mapping[str, str | None], network: Mapping[str, Any]) -> Login:
    """Return the login of the service principal in the storage options.

    Raises:
        MissingDependency: azure-identity is not installed.
        StoreAuthError: one of the three is missing.
    """
    missing = [name for name, value in arguments.items() if not value]
    if missing:
        raise StoreAuthError(
            f"a service principal of Azure needs the storage options {list(arguments)}; {missing} "
            f"{'is' if len(missing) == 1 else 'are'} missing. For a managed identity of its own id pass "
            "`managed_identity_client_id` instead",
            missing=missing,
        )
    return Login(_identity().ClientSecretCredential(**arguments, **_limits(network)))


def _identity() -> Any:
    identity = load_extra("azure.identity.aio")
    for name in _LOGGERS:
        logging.getLogger(f"azure.identity.aio.{name}").addFilter(_HIDE_SECRETS)  # idempotent
    return identity


def _limits(network: Mapping[str, Any] | None = None) -> dict[str, Any]:
    found = {"retry_total": TOKEN_RETRIES, "connection_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
    ways = {"proxies": login_proxies_of(network or {}), "connection_verify": ca_bundle_of(network or {})}
    return found | {name: value for name, value in ways.items() if value}


def _explain(text: str) -> str:
    """Return the variables that are set and a short reason of each credential; first those that the variables select.

    `text` is a message of azure-identity, with a line for each credential that it tried.
    """
    names = [name for group in VARIABLES.values() for name in group]
    found = [name for name in names if os.environ.get(name)]
    lines = [" ".join(line.split()) for line in re.findall(r"\b(\w+Credential: [^\n]+)", text)]
    lines = lines or [" ".join(text.split())]
    selected = [line for line in lines if set(VARIABLES.get(line.partition(":")[0], ())) & set(found)]
    others = [line for line in lines if line not in selected]
    reasons = "; ".join(line[:_MAX_EXPLANATION] for line in (*selected, *others))
    return f"Azure identity gave no token, with the variables {found or 'of none of its logins'} set: {reasons}"
