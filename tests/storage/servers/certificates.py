"""A certificate for 127.0.0.1 and its own authority, new for each session."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate, in PEM form."""

    authority: Path
    chain: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """Make the three files in the folder."""
    import trustme

    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    made = Certificate(folder / "authority.pem", folder / "chain.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(str(made.authority))
    for blob in server.cert_chain_pems:
        blob.write_to_path(str(made.chain), append=True)
    server.private_key_pem.write_to_path(str(made.key))
    return made
