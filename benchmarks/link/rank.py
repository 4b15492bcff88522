"""One of the ranks that read an epoch together: prints the numbers of the samples that it got."""

import json
import sys

from benchmarks.link.place import Place, RemoteOptions
from benchmarks.peers import ReadOptions, find
from benchmarks.task import Task


def main(arguments: list[str]) -> None:
    """Takes the task as JSON and the address of the server."""
    task = Task(**json.loads(arguments[0]))
    place = Place("s3://bucket", arguments[1], task.scratch / "cache")
    options = ReadOptions(batch_size=task.kind.batch_size, workers=1)
    peer = find(task.peer)
    loader = peer.remote_loader(place, task.kind, options, RemoteOptions())
    print(json.dumps([int(name[:8]) for batch in loader for name in peer.columns(batch)["name"]]))


if __name__ == "__main__":
    main(sys.argv[1:])
