"""Run by MosaicML's interpreter: read parts of epochs with its loader, alone; imports nothing of Smalti.

python peer_resume.py FOLDER CASES.json OUT.json

A case is {options, state, take, workers}: a new dataset loads the state (null: none, "last": the previous case's),
gives so many batches (null: the rest of the epoch) and saves its state. The answer: {batches: lists of ids, state}.
"""

import json
import sys
import warnings
from itertools import islice


def read_batches(folder, case):
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=folder, **case["options"])
    loader = StreamingDataLoader(
        dataset, batch_size=dataset.batch_size, num_workers=case["workers"], collate_fn=lambda samples: samples
    )
    if case["state"] is not None:
        loader.load_state_dict(case["state"])
    batches = [[sample["id"] for sample in batch] for batch in islice(loader, case["take"])]
    # The peer's loader counts samples by the length of a batch's first value; these batches are lists of samples.
    state = dataset.state_dict(sum(map(len, batches)), from_beginning=False)
    return {"batches": batches, "state": state}


def main(folder, cases, out):
    warnings.simplefilter("ignore")
    answers = []
    with open(cases) as file:
        for case in json.load(file):
            if case["state"] == "last":
                case["state"] = answers[-1]["state"]
            answers.append(read_batches(folder, case))
    with open(out, "w") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
