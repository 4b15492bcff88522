"""The environment variables by which stores find credentials, endpoints and settings: one list for all who carry them.

A store that begins to read another variable adds it here; `tests/storage/test_variables.py` looks for it.
"""

from collections.abc import Mapping

_PREFIXES = ("AWS_", "AZURE_", "COMPOSER_SFTP_", "DATABRICKS_", "GOOGLE_", "OCI_", "S3_")
_NAMES = frozenset({
    "CLOUDSDK_CONFIG", "GCE_METADATA_DETECT_RETRIES", "GCE_METADATA_TIMEOUT", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT",
    "GCS_KEY", "GCS_SECRET",
    "HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MOSAICML_STREAMING_AWS_REQUESTER_PAYS",
})  # fmt: skip

OF_THIS_HOST = frozenset({
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET",
    "SYSTEM_ACCESSTOKEN",
})  # fmt: skip
"""Name a service of this host or build agent, which gives tokens to it alone: of no use elsewhere."""


def store_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables by which a process on another host reaches the stores that this one reaches.

    The values may be secrets: keep them out of messages, logs, files and command lines.
    """
    return {name: value for name, value in environment.items() if name.startswith(_PREFIXES) or name in _NAMES}
