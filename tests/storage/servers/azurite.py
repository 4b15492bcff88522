"""Azurite, Microsoft's own emulator of Azure Blob Storage, in memory; over http and https."""

import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.storage.servers.process import fail_or_skip, run_server

ROOT = Path(__file__).resolve().parents[3]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's, public


@dataclass(frozen=True)
class Azurite:
    """A running Azurite with one account."""

    scheme: str
    port: int
    account: str = ACCOUNT
    key: str = KEY

    @property
    def host(self) -> str:
        """The account's address without its scheme."""
        return f"127.0.0.1:{self.port}/{self.account}"

    @property
    def connection_string(self) -> str:
        """The connection string with the account's key."""
        return (
            f"DefaultEndpointsProtocol={self.scheme};AccountName={self.account};AccountKey={self.key};"
            f"BlobEndpoint={self.scheme}://{self.host};"
        )

    def make_container(self, authority: Path | None = None) -> str:
        """Make a container and return its name."""
        from azure.storage.blob import BlobServiceClient

        name = f"c-{secrets.token_hex(6)}"
        trusted = {"connection_verify": str(authority)} if authority else {}
        with BlobServiceClient.from_connection_string(self.connection_string, **trusted) as client:
            client.create_container(name)
        return name

    def sign(self, container: str, permission: str) -> str:
        """Return a shared access signature for one container."""
        from datetime import datetime, timedelta, timezone

        from azure.storage.blob import generate_container_sas

        end = datetime.now(timezone.utc) + timedelta(hours=1)
        return generate_container_sas(self.account, container, self.key, permission=permission, expiry=end)


def find_azurite() -> Path:
    """Return the path of the program, which `make setup` installs."""
    for folder in (ROOT / ".venv" / "servers",):
        program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        if program.is_file() and shutil.which("node"):
            return program
    fail_or_skip("Azurite is not installed: `make setup` installs it where there are node and npm")
    raise AssertionError


@contextmanager
def azurite(certificate=None):
    """Run the server; over https with a certificate."""
    program = find_azurite()
    # Without --disableTelemetry it would send reports to Microsoft.
    argv = ["node", str(program), "--blobHost", "127.0.0.1", "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    argv += ["--skipApiVersionCheck"]
    if certificate is not None:
        # Azurite only accepts tokens over https; it checks audience, issuer and expiry, but no signature.
        argv += ["--cert", str(certificate.chain), "--key", str(certificate.key), "--oauth", "basic"]
    with run_server(lambda port: [*argv, "--blobPort", str(port)]) as port:
        yield Azurite("https" if certificate else "http", port)
