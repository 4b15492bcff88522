"""`python -m tests.faultstore`: the fault store as a process of its own, for benchmarks and for forks."""

import argparse
from pathlib import Path

from tests.faultstore.objects import Bucket, load_folder
from tests.faultstore.running import run_here
from tests.faultstore.server import Server, listen
from tests.faultstore.toxics import Toxic


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM; the first line of output is the address."""
    parser = argparse.ArgumentParser(prog="python -m tests.faultstore", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--bucket", action="append", help="a bucket that is there (default: `bucket`); again for more")
    parser.add_argument("--folder", type=Path, help="its files are objects of the first bucket, mapped where they lie")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="before every reply")
    parser.add_argument("--bandwidth", type=float, default=0.0, metavar="BYTES/S", help="of all connections together")
    parser.add_argument("--until-eof", action="store_true", help="end with standard input, so with whoever holds it")
    chosen = parser.parse_args(arguments)
    server = Server(chosen.seed)
    for name in chosen.bucket or ["bucket"]:
        server.service.buckets[name] = Bucket()
    if chosen.folder:
        load_folder(next(iter(server.service.buckets.values())), chosen.folder)
    if chosen.latency:
        server.toxics.add(Toxic("latency", seconds=chosen.latency))
    if chosen.bandwidth:
        server.toxics.add(Toxic("bandwidth", rate=chosen.bandwidth))
    listening = listen(chosen.host, chosen.port)
    host, port = listening.getsockname()

    def announce() -> None:
        print(f"http://{host}:{port}", flush=True)

    run_here(server, listening, announce=announce, until_eof=chosen.until_eof)


if __name__ == "__main__":
    main()
