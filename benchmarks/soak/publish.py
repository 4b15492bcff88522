"""Publishes one more version of the set of news, as a writer elsewhere would; its last line tells how it went.

`python -m benchmarks.soak.publish '{"url": ..., "count": ..., "size_limit": ..., "write": 3, "store": {...}}'`
"""

import json
import sys

from benchmarks.soak.samples import SetOf, write_set
from smalti.errors import SmaltiError


def main() -> None:
    """Writes and publishes."""
    told = json.loads(sys.argv[1])
    of = SetOf("news", told["count"], told["size_limit"])
    outcome = {"kind": "published", "message": "", "typed": True}
    try:
        write_set(of, told["url"], write=told["write"], exist_ok=True, retry=3, storage_options=told["store"])
    except SmaltiError as error:
        outcome = {"kind": type(error).__name__, "message": str(error), "typed": True}
    except Exception as error:  # noqa: BLE001 -- it is told, and judged elsewhere
        outcome = {"kind": type(error).__name__, "message": repr(error), "typed": False}
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
