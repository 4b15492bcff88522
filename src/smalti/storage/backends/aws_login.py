"""Assumed roles of AWS: temporary credentials by STS, for botocore and for s3fs alike.

One object of botocore's holds the credentials and renews them before they expire; s3fs, which is asynchronous, waits
for it in a thread. Requests to STS use the proxy and the certificate authority of the store.
"""

import asyncio
import functools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from smalti.errors import StoreAuthError
from smalti.storage.retry import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS
from smalti.storage.schemes import load_extra

_DEFAULT_SESSION_NAME = "smalti"


def assumed_role(session: Any, settings: Mapping[str, Any], client: Mapping[str, Any], proxies: Any) -> Any:
    """Return credentials of botocore for the role in the settings.

    Args:
        session: A session of botocore, which finds the credentials to assume the role with.
        settings: The store's options, with `role_arn`.
        client: Arguments of the store's client: region and certificates.
        proxies: Proxies by scheme, or None.

    Raises:
        StoreAuthError: the file of the web identity is missing, or there are no credentials to assume the role with.
    """
    credentials, endpoint = load_extra("botocore.credentials"), settings.get("sts_endpoint_url")
    config = load_extra("botocore.config").Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"total_max_attempts": LIBRARY_ATTEMPTS, "mode": "standard"},
        proxies=proxies,
    )

    def create(service: str, **given: Any) -> Any:
        region = client.get("region_name") or session.get_config_variable("region") or "us-east-1"
        given["config"] = config.merge(given["config"]) if given.get("config") is not None else config
        return session.create_client(
            service,
            endpoint_url=endpoint,
            region_name=region,
            verify=client.get("verify"),
            **given,
        )

    extra = {"RoleSessionName": settings.get("role_session_name") or _DEFAULT_SESSION_NAME}
    if settings.get("external_id"):
        extra["ExternalId"] = settings["external_id"]
    role, token_file = settings["role_arn"], settings.get("web_identity_token_file")
    refreshable = credentials.DeferredRefreshableCredentials
    if token_file:
        load = partial(_web_identity, Path(token_file))
        fetcher = credentials.AssumeRoleWithWebIdentityCredentialFetcher(create, load, role, extra_args=extra, cache={})
        return refreshable(refresh_using=fetcher.fetch_credentials, method="assume-role-with-web-identity")
    if settings.get("key"):
        source = credentials.Credentials(settings["key"], settings.get("secret"), settings.get("token"))
    else:
        source = session.get_credentials()
    if source is None:
        raise StoreAuthError(
            f"the storage option `role_arn` names {role}, and there are no credentials to assume it with; set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass `key` and `secret`, or `web_identity_token_file`",
            role_arn=role,
        )
    fetcher = credentials.AssumeRoleCredentialFetcher(create, source, role, extra_args=extra, cache={})
    return refreshable(refresh_using=fetcher.fetch_credentials, method="assume-role")


def _web_identity(path: Path) -> str:
    """Return the token of a web identity, read anew for each request: Kubernetes replaces the file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreAuthError(
            f"the storage option `web_identity_token_file` names {path}, which cannot be read here: {error.strerror}",
        ) from error


@functools.cache
def _async_class() -> Any:
    base: Any = load_extra("aiobotocore.credentials").AioCredentials

    class AsyncCredentials(base):  # type: ignore[misc]
        """Credentials of botocore for a client of aiobotocore."""

        def __init__(self, credentials: Any) -> None:
            super().__init__(None, None, method=credentials.method)
            self._renewed = credentials

        async def get_frozen_credentials(self) -> Any:
            """Return the present key, secret and token, renewed if they are about to expire."""
            return await asyncio.to_thread(self._renewed.get_frozen_credentials)

    return AsyncCredentials


def with_shared_models(session: Any) -> Any:
    """Return a session of botocore whose clients use the descriptions of services that this process has read before.

    They are 2 MB of JSON: each session would read them again, which takes longer than all else that a client needs.
    """
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@functools.cache
def _loader(data_path: str | None) -> Any:
    return load_extra("botocore.loaders").create_loader(data_path)


def async_session(credentials: Any = None, *, profile: str | None = None) -> Any:
    """Return a session of aiobotocore that signs with these credentials, by default with those that it finds."""
    session = with_shared_models(load_extra("aiobotocore.session").AioSession(profile=profile))
    if credentials is not None:
        session._credentials = _async_class()(credentials)
    return session
