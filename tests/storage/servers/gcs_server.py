"""gcp-storage-emulator in memory, with a queue long enough for many readers at once.

python -m tests.storage.servers.gcs_server PORT
"""

import json
import secrets
import socketserver
import sys
import urllib.request
from contextlib import contextmanager

from tests.storage.servers.process import run_server


@contextmanager
def gcs_server():
    """Run the server and yield its address."""
    argv = [sys.executable, "-m", "tests.storage.servers.gcs_server"]
    with run_server(lambda port: [*argv, str(port)]) as port:
        yield f"http://127.0.0.1:{port}"


def make_bucket(url: str) -> str:
    """Make a bucket and return its name."""
    name = f"b-{secrets.token_hex(6)}"
    body = json.dumps({"name": name}).encode()
    ask = urllib.request.Request(f"{url}/storage/v1/b?project=t", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(ask, timeout=30).read()
    return name


def main(port):
    socketserver.TCPServer.request_queue_size = 256  # with its default of 5, 64 readers would wait for seconds
    from gcp_storage_emulator.__main__ import main as serve

    sys.exit(serve(["start", "--host", "127.0.0.1", "--port", port, "--in-memory", "--quiet"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
