"""Run by interpreters with different numpys: what numpy this is, and a part of a run, saved as JSON.

python numpy_versions.py ROOT STATE.json STEPS OUT.json      (STATE.json may be absent; STEPS 0: a whole epoch)
"""

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from smalti.compat.streaming.order.shuffles import shuffled_ids
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.dataset.epoch_reader import BatchForm

ORDERS = ("naive", "py1s", "py2s", "py1br", "py1e")


def main(root: str, saved: str, steps: str, out: str) -> None:
    """Goes on with the run for some steps of 3."""
    dataset = StreamingDataset(
        remote=root,
        batch_size=3,
        order=OrderOptions(num_canonical_nodes=2, shuffle_block_size=8, tail="short"),
        shuffle=True,
    )
    if Path(saved).exists():
        dataset.load_state_dict(json.loads(Path(saved).read_text()))
    this_pass = dataset._smalti.begin_pass()
    taken = [dataset._smalti.read(step, ids, BatchForm.COLUMNS)[0]["id"].tolist()
             for step, ids in islice(dataset._smalti.planned(this_pass), int(steps) or None)]  # fmt: skip
    Path(saved).write_text(json.dumps(dataset._smalti.reading(this_pass).cursor_after(len(taken)).to_state()))
    orders = {
        name: shuffled_ids(name, [5, 7, 4, 6], canonical_nodes=2, seed=9176, epoch=0, block_size=8).tolist()
        for name in ORDERS
    }
    found = {"numpy": np.__version__, "ids": [number for ids in taken for number in ids], "orders": orders}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
