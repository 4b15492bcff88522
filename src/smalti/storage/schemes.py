"""The registry of storage schemes: one `Scheme` holds everything that Smalti knows about `s3://`, `gs://` or `dbfs:`.

To add a scheme, write a module of `smalti.storage.backends`, and add one entry to `SCHEMES`.
The opening of addresses, `FsspecStore`, advice in error messages, redaction, training workers and deployments read the
registry. Two things have other places: exceptions of a new client library are named in `smalti.storage.errors`, and a
storage resource of Dagster with its own fields is a class in `smalti_dagster/resources/storage.py`.

Modules of backends are named as text and imported on first use, so that every module of this package can import this
one.
"""

import functools
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from smalti.errors import MissingDependency
from smalti.redaction import declare_schemes


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The facts of one kind of object store or server."""

    name: str
    """Canonical name, without "://"."""
    aliases: tuple[str, ...] = ()
    """Other names that addresses may use for the same kind of store."""
    module: str
    """Name of the module with the functions of its client; see `smalti.storage.backends`."""
    named_options: tuple[str, ...] = ()
    """Storage options of Smalti's own, which the library of the scheme does not know by this name."""
    usual_options: tuple[str, ...] = ()
    """Options of the library of the scheme that are accepted without importing it."""
    allows_at_sign: bool = False
    """True if "@" has a meaning before the prefix; elsewhere the text before it is refused, and masked in messages."""
    is_web: bool = False
    """True if addresses are those of the web, in which "#" begins a fragment."""
    is_read_only: bool = False
    """True if the store refuses writes; the file system of `hf://` refuses them itself, with advice."""
    has_conditional_puts: bool = False
    """True if the file system has `get_tagged` and `put_if_match`."""
    copies: bool = False
    """True if the server copies objects from one bucket to another by itself (the file system has `cp_file`)."""
    keeps_uploads: bool = False
    """True if parts or temporary files of a killed writer stay in the store until they are removed explicitly.

    The file system then has `unfinished_uploads` and `abort_upload`. Google and Azure remove parts within a week.
    """
    lists_old_versions: bool = False
    """True if the file system has `old_versions` and `remove_old_version`, for buckets that keep earlier contents."""
    variables: tuple[str, ...] = ()
    """Environment variables with credentials, endpoints and settings; "AWS_*" stands for all with this prefix.

    Training workers on other hosts receive them.
    """
    secret_variables: tuple[str, ...] = ()
    """Variables of the same kind whose values are secret: masked in messages, passed by reference in deployments."""
    host_variables: tuple[str, ...] = ()
    """Variables that name a login service of this host or build agent: useless on other hosts, so not passed on."""
    credentials_help: str = "check the storage options"
    """Advice for missing or refused credentials, as the middle of a sentence."""
    endpoint_help: str = "check the address"
    """Advice for a server that refuses connections, as the middle of a sentence."""
    extra: str = ""
    """Extra of the package `smalti` that installs the client; "" where none is needed."""
    packages: tuple[str, ...] = ()
    """Optional Python packages that the extra installs and `load_extra` imports."""

    @property
    def backend(self) -> Any:
        """The module `module`, imported on the first use: `import smalti` stays fast."""
        return importlib.import_module(self.module)


_AZURE_HELP = (
    "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_TOKEN, or AZURE_ACCOUNT_NAME with AZURE_ACCOUNT_ACCESS_KEY, or AZURE_TENANT_ID, "
    "AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or pass them as storage options, or give the machine a managed "
    "identity or the user an `az login`; a public container needs anon=True"
)
_NETWORK = ("proxy", "ca_bundle")
_S3 = Scheme(
    name="s3",
    aliases=("s3a",),
    module="smalti.storage.backends.s3",
    named_options=(
        "server_side_encryption", "kms_key_id", "bucket_key", "role_arn", "external_id", "role_session_name",
        "web_identity_token_file", "sts_endpoint_url", "region", "addressing_style", *_NETWORK,
    ),
    usual_options=(
        "anon", "key", "secret", "token", "endpoint_url", "use_ssl", "client_kwargs", "config_kwargs", "requester_pays",
        "s3_additional_kwargs", "profile",
    ),
    has_conditional_puts=True,
    copies=True,
    keeps_uploads=True,
    lists_old_versions=True,
    variables=("AWS_*", "S3_*", "MOSAICML_STREAMING_AWS_REQUESTER_PAYS"),
    secret_variables=(
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    ),
    host_variables=(
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    ),
    credentials_help=(
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN for temporary ones) or AWS_PROFILE, "
        "and S3_ENDPOINT_URL for a store that is not AWS, or pass them as storage options `key`, `secret`, `token`, "
        "`endpoint_url`; a public bucket needs the option anon=True"
    ),
    endpoint_help=(
        "check the storage option `endpoint_url`, or the first one that is set of S3_ENDPOINT_URL, AWS_ENDPOINT_URL_S3 "
        "and AWS_ENDPOINT_URL; without any, requests go to AWS"
    ),
    extra="s3",
    packages=("s3fs", "botocore"),
)  # fmt: skip
_HTTPS = Scheme(
    name="https",
    module="smalti.storage.backends.web",
    usual_options=("headers", "client_kwargs", "exact_address"),
    is_web=True,
    is_read_only=True,
    credentials_help=(
        "pass what the server wants as the storage option `headers`, such as {'Authorization': 'Bearer ...'}"
    ),
    extra="https",
    packages=("aiohttp",),
)
SCHEMES = (
    _S3,
    replace(
        _S3,
        name="oci",
        aliases=(),
        allows_at_sign=True,  # the namespace: oci://bucket@namespace
        variables=("OCI_*",),
        credentials_help=(
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a customer secret key of Oracle's, and OCI_REGION, or "
            "pass them as storage options `key`, `secret`, `endpoint_url`"
        ),
    ),
    Scheme(
        name="gs",
        aliases=("gcs",),
        module="smalti.storage.backends.gcs",
        named_options=("workload_identity", *_NETWORK),
        usual_options=("token", "project", "access", "endpoint_url", "key", "secret", "client_kwargs", "config_kwargs"),
        has_conditional_puts=True,
        copies=True,
        variables=(
            "GOOGLE_*", "GCS_KEY", "CLOUDSDK_CONFIG", "GCE_METADATA_DETECT_RETRIES", "GCE_METADATA_TIMEOUT",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "STORAGE_EMULATOR_HOST",
        ),
        secret_variables=("GCS_SECRET",),
        credentials_help=(
            "set GOOGLE_APPLICATION_CREDENTIALS to a key file or run `gcloud auth application-default login`, or set "
            "GCS_KEY and GCS_SECRET to an HMAC key, or pass the storage option `token`; a public bucket needs "
            "token='anon'"
        ),
        extra="gcs",
        packages=("gcsfs",),
    ),
    Scheme(
        name="abfs",
        aliases=("abfss", "az", "azure-dl"),
        module="smalti.storage.backends.azure",
        named_options=("managed_identity", "managed_identity_client_id", *_NETWORK),
        usual_options=(
            "anon", "account_name", "account_key", "account_host", "connection_string", "sas_token", "credential",
            "tenant_id", "client_id", "client_secret", "fallback_account",
        ),
        allows_at_sign=True,  # the container: abfs://container@account.dfs.core.windows.net
        has_conditional_puts=True,
        variables=("AZURE_*",),
        secret_variables=(
            "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY",
            "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET",
            "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD", "IDENTITY_HEADER", "MSI_SECRET",
        ),
        host_variables=("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET"),
        credentials_help=_AZURE_HELP,
        extra="azure",
        packages=("adlfs", "azure"),
    ),
    Scheme(  # MosaicML's form of the address; the store that it opens is of the scheme "abfs"
        name="azure",
        module="smalti.storage.backends.azure",
        has_conditional_puts=True,
        credentials_help=_AZURE_HELP,
    ),
    Scheme(  # `smalti.storage.databricks.mount` parses these addresses: they may be paths of mounted folders
        name="dbfs",
        module="smalti.storage.databricks.volumes",
        usual_options=("host", "token", "profile", "client_id", "client_secret", "http_timeout_seconds"),
        allows_at_sign=True,  # in the names of folders: there is no host
        keeps_uploads=True,
        variables=("DATABRICKS_*", "ARM_*"),  # ARM_*: logins of Azure
        secret_variables=(
            "DATABRICKS_TOKEN", "DATABRICKS_CLIENT_SECRET", "DATABRICKS_PASSWORD", "DATABRICKS_OIDC_TOKEN",
            "ARM_CLIENT_SECRET", "GOOGLE_CREDENTIALS", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SYSTEM_ACCESSTOKEN",
        ),
        host_variables=("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "SYSTEM_ACCESSTOKEN"),
        credentials_help=(
            "set DATABRICKS_HOST and DATABRICKS_TOKEN (or DATABRICKS_CLIENT_ID and DATABRICKS_CLIENT_SECRET), or a "
            "profile in ~/.databrickscfg, or pass the storage options `host` and `token`; training and Spark worker "
            "processes need them as well, they do not inherit a notebook's login; rights: READ VOLUME to read, WRITE "
            "VOLUME to write"
        ),
        extra="databricks",
        packages=("databricks.sdk",),
    ),
    Scheme(
        name="sftp",
        aliases=("ssh",),
        module="smalti.storage.backends.sftp",
        usual_options=("host", "port", "username", "password", "client_keys", "key_filename", "known_hosts"),
        allows_at_sign=True,
        keeps_uploads=True,
        variables=("COMPOSER_SFTP_*",),
        credentials_help=(
            "set COMPOSER_SFTP_KEY_FILE to a private key, or pass the storage options `username`, `password`, "
            "`client_keys`; the server's own key must be in ~/.ssh/known_hosts or in the file that "
            "COMPOSER_SFTP_KNOWN_HOSTS_FILE names"
        ),
        extra="sftp",
        packages=("sshfs",),
    ),
    Scheme(
        name="hf",
        module="smalti.storage.backends.hub",
        is_web=True,
        usual_options=("token", "endpoint"),
        variables=("HF_ENDPOINT",),
        secret_variables=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        credentials_help="set HF_TOKEN, or run `hf auth login`, or pass the storage option `token`",
        extra="hf",
        packages=("huggingface_hub",),
    ),
    _HTTPS,
    replace(_HTTPS, name="http"),
    Scheme(
        name="memory",
        module="smalti.storage.backends.memory",
        has_conditional_puts=True,
    ),
)  # fmt: skip
"""All schemes of object stores and servers; paths and `file://` open a `LocalStore` without one."""

SCHEME_BY_NAME = {name: scheme for scheme in SCHEMES for name in (scheme.name, *scheme.aliases)}
"""The schemes by name and by alias."""
declare_schemes({name: scheme.allows_at_sign for name, scheme in SCHEME_BY_NAME.items()})
_LOGIN_OPTIONS = frozenset(
    {
        "anon", "key", "secret", "token", "profile", "account_key", "sas_token", "connection_string", "credential",
        "client_id", "client_secret", "username", "password", "client_keys", "key_filename", "headers",
    }
)  # fmt: skip
"""Storage options that say who the caller is."""
_LOGIN_VARIABLES = frozenset({"GCS_KEY", "COMPOSER_SFTP_KEY_FILE"})
"""Variables that say who the caller is without being secret."""
_EXTRAS = {package: scheme.extra for scheme in SCHEMES for package in scheme.packages}


def make_filesystem(name: str, options: Mapping[str, Any]) -> Any:
    """Make an fsspec file system; other users of fsspec do not share it, so that changed credentials take effect.

    Raises:
        MissingDependency: the extra for this scheme is not installed; the message has the pip command.
        StoreAuthError: the options name credentials that cannot be used.
    """
    return SCHEME_BY_NAME[name].backend.make(dict(options))


def load_extra(module: str) -> Any:
    """Import an optional module, which the client of some scheme needs.

    Raises:
        MissingDependency: it is not installed; the message has the pip command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = _EXTRAS.get(module) or _EXTRAS[module.split(".", maxsplit=1)[0]]
        raise MissingDependency(
            f"this address needs the Python package {module!r}, which is not installed: pip install 'smalti[{extra}]'",
            module=module,
            extra=extra,
        ) from error


@dataclass(frozen=True)
class Address:
    """A parsed address of an object store or server."""

    scheme: str
    """Canonical name."""
    root: str
    """The folder, as the file system of the scheme names it."""
    url: str
    """The address in one spelling, without secrets."""
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    """The caller's options, completed by what the address contains."""


def bucket_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address `<scheme>://bucket/prefix`; pure."""
    root = f"{host}/{prefix}".strip("/")
    return Address(scheme, root, f"{scheme}://{root}", options)


def detect(*names: str) -> str | None:
    """Return the value of the first of these environment variables that is set and not empty."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def named_login(scheme: str, options: Mapping[str, Any]) -> str:
    """Return the names of the storage options or environment variables with credentials; "" if there are none."""
    given = [name for name in options if name in _LOGIN_OPTIONS]
    if given:
        return "the storage options " + ", ".join(f"`{name}`" for name in given)
    known = SCHEME_BY_NAME[scheme]
    names = [*known.secret_variables, *(name for name in known.variables if name in _LOGIN_VARIABLES)]
    return ", ".join(name for name in names if os.environ.get(name))


def store_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let a process on another host reach the same stores as this one.

    The values may be secrets: keep them out of messages, logs, files and command lines.
    """
    names = {name for scheme in SCHEMES for name in (*scheme.variables, *scheme.secret_variables)}
    prefixes = tuple(name.removesuffix("*") for name in names if name.endswith("*"))
    carried = {name for name in environment if name in names or name.startswith(prefixes)} - host_variables()
    return {name: value for name, value in environment.items() if name in carried}


@functools.cache
def secret_variables() -> frozenset[str]:
    """Return the names of all environment variables whose values are secret."""
    return frozenset(name for scheme in SCHEMES for name in scheme.secret_variables)


@functools.cache
def host_variables() -> frozenset[str]:
    """Return the names of all environment variables that are useless on other hosts."""
    return frozenset(name for scheme in SCHEMES for name in scheme.host_variables)
