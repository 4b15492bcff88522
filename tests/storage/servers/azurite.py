"""Azurite, Microsoft's own emulator of Azure Blob Storage, in memory; over http and https."""

import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.storage.servers.process import not_here, running

ROOT = Path(__file__).resolve().parents[3]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's, public


@dataclass(frozen=True)
class Azurite:
    """One account."""

    scheme: str
    port: int
    account: str = ACCOUNT
    key: str = KEY

    @property
    def host(self) -> str:
        """What stands after https:// in the account's address."""
        return f"127.0.0.1:{self.port}/{self.account}"

    @property
    def connection_string(self) -> str:
        """For whoever holds the account's key."""
        return (
            f"DefaultEndpointsProtocol={self.scheme};AccountName={self.account};AccountKey={self.key};"
            f"BlobEndpoint={self.scheme}://{self.host};"
        )

    def make_container(self, authority: Path | None = None) -> str:
        """The name of a new container."""
        from azure.storage.blob import BlobServiceClient

        name = f"c-{secrets.token_hex(6)}"
        trusted = {"connection_verify": str(authority)} if authority else {}
        with BlobServiceClient.from_connection_string(self.connection_string, **trusted) as client:
            client.create_container(name)
        return name

    def sign(self, container: str, permission: str) -> str:
        """A shared access signature for one container."""
        from datetime import datetime, timedelta, timezone

        from azure.storage.blob import generate_container_sas

        end = datetime.now(timezone.utc) + timedelta(hours=1)
        return generate_container_sas(self.account, container, self.key, permission=permission, expiry=end)


def find_azurite() -> Path:
    """Its program, where `make setup` puts it."""
    for folder in (ROOT / ".venv" / "servers",):
        program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        if program.is_file() and shutil.which("node"):
            return program
    not_here("Azurite is not installed: `make setup` installs it where there are node and npm")
    raise AssertionError


@contextmanager
def azurite(certificate=None):
    """The server; over https with a certificate."""
    program = find_azurite()
    # Without --disableTelemetry it would send reports out.
    argv = ["node", str(program), "--blobHost", "127.0.0.1", "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    argv += ["--skipApiVersionCheck"]
    if certificate is not None:
        # Tokens are looked at over https alone: for whom, from whom and until when, but not who signed them.
        argv += ["--cert", str(certificate.chain), "--key", str(certificate.key), "--oauth", "basic"]
    with running(lambda port: [*argv, "--blobPort", str(port)]) as port:
        yield Azurite("https" if certificate else "http", port)
