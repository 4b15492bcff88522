"""Fine-tuning on a mixture: two sets by proportion, an epoch size of one's own, StreamingDataLoader and its state."""

import argparse
import json

import streaming
from streaming import StreamingDataLoader


def collate(samples):
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def main(args: argparse.Namespace) -> None:
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(
        streams=[
            streaming.Stream(remote=f"{args.data}/web", local=f"{args.local}/web", proportion=0.75),
            streaming.Stream(remote=f"{args.data}/code", local=f"{args.local}/code", proportion=0.25),
        ],
        epoch_size="96",
        shuffle=True,
        shuffle_seed=42,
        shuffle_algo="py1br",
        sampling_granularity=4,
        batching_method=args.batching,
        cache_limit="1mb",
        batch_size=4,
    )
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, collate_fn=collate)
    if args.load:
        with open(args.load) as file:
            loader.load_state_dict(json.load(file))
    with open(args.log, "w") as log:
        for epoch in range(dataset.next_epoch, 2):
            for step, batch in enumerate(loader):
                log.write(json.dumps([batch["prompt"], batch["meta"], [w.tolist() for w in batch["weights"]]]) + "\n")
                if args.save and (epoch, step) == (0, 10):
                    with open(args.save, "w") as file:
                        json.dump(loader.state_dict(), file)
                    return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--local", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--save")
    parser.add_argument("--load")
    parser.add_argument("--batching", default="random")
    main(parser.parse_args())
