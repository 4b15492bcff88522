"""Run by MosaicML's interpreter: read parts of epochs over several streams; imports nothing of Smalti.

python peer_mixtures.py CASES.json OUT.json

A case is {streams, options, state, take, epochs, workers}: a new dataset loads the state (null: none, "last": the
previous case's), reads so many epochs of `take` batches each (null: all that are left), and saves its state. The answer
is {epochs: lists of batches of ids, state}, or {refused: message}. A case with {hosts, ranks_on_host} is answered with
the batches of every rank of that world, out of the array that the peer's workers share.
"""

import json
import sys
import warnings
from itertools import islice


def open_dataset(case):
    from streaming import Stream, StreamingDataset

    streams = [Stream(**stream) for stream in case["streams"]]
    return StreamingDataset(streams=streams, **case["options"])


def read_epochs(case):
    from streaming import StreamingDataLoader

    dataset = open_dataset(case)
    loader = StreamingDataLoader(
        dataset, batch_size=dataset.batch_size, num_workers=case["workers"], collate_fn=lambda samples: samples
    )
    if case["state"] is not None:
        loader.load_state_dict(case["state"])
    epochs = []
    for _ in range(case["epochs"]):
        batches = [[sample["id"] for sample in batch] for batch in islice(loader, case["take"])]
        epochs.append(batches)
    # The peer's loader counts samples by the length of a batch's first value; these batches are lists of samples.
    state = dataset.state_dict(sum(map(len, epochs[-1])), from_beginning=False)
    return {"epochs": epochs, "state": state}


def read_world(case):
    """Return the batches of sample ids that all ranks of a world read, by rank."""
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    dataset, shape = open_dataset(case), World(case["hosts"], case["ranks_on_host"], 1, 0)
    dataset.num_canonical_nodes = dataset.num_canonical_nodes or shape.num_nodes
    dataset.initial_physical_nodes = shape.num_nodes
    dataset._set_shuffle_block_size(shape)
    epochs = [generate_work(dataset.batching_method, dataset, shape, epoch, 0) for epoch in range(case["epochs"])]
    return {"epochs": [work.reshape(shape.num_ranks, -1, dataset.batch_size).tolist() for work in epochs]}


def main(cases, out):
    warnings.simplefilter("ignore")
    answers = []
    with open(cases) as file:
        for case in json.load(file):
            if case.get("state") == "last":
                case["state"] = answers[-1].get("state")
            try:
                answers.append(read_world(case) if "hosts" in case else read_epochs(case))
            except (ValueError, ZeroDivisionError) as error:
                answers.append({"refused": str(error)})
    with open(out, "w") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
