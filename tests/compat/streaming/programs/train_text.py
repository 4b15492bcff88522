"""Pretraining on tokens, in the manner of LLM Foundry: a subclass with its own `__getitem__`, and a plain DataLoader.

Checkpoints hold the data set's state as Composer takes it: by the number of samples of the epoch that were trained on.
"""

import argparse
import json
import os
import zlib
from typing import Any, Optional, Sequence

import numpy as np
import torch
from streaming import Stream, StreamingDataset
from torch.utils.data import DataLoader


class StreamingTextDataset(StreamingDataset):
    """Tokens of at most `max_seq_len`, out of one or more streams."""

    def __init__(
        self,
        max_seq_len: int,
        token_encoding_type: str = "int64",
        streams: Optional[Sequence[Stream]] = None,
        remote: Optional[str] = None,
        local: Optional[str] = None,
        split: Optional[str] = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: Optional[str] = None,
        keep_zip: bool = False,
        epoch_size: Optional[int] = None,
        predownload: Optional[int] = None,
        cache_limit: Optional[str] = None,
        partition_algo: str = "relaxed",
        num_canonical_nodes: Optional[int] = None,
        batch_size: Optional[int] = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: Optional[int] = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: Optional[int] = None,
    ):
        if local is not None and (remote is None or (local == remote)) and os.path.isdir(local):
            contents = set(os.listdir(local))
            if split not in contents:
                raise ValueError(f"local directory {local} does not contain split {split}")
        super().__init__(
            streams=streams,
            remote=remote,
            local=local,
            split=split,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
            epoch_size=epoch_size,
            predownload=predownload,
            cache_limit=cache_limit,
            partition_algo=partition_algo,
            num_canonical_nodes=num_canonical_nodes,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
            batching_method=batching_method,
            allow_unsafe_types=allow_unsafe_types,
            replication=replication,
        )
        self.token_encoding_type = token_encoding_type
        self.max_seq_len = max_seq_len

    def _read_binary_tokenized_sample(self, sample: dict[str, Any]) -> torch.Tensor:
        data = np.frombuffer(sample["tokens"], dtype=getattr(np, self.token_encoding_type))
        return torch.from_numpy(data[: self.max_seq_len].copy())

    def __getitem__(self, idx: int) -> torch.Tensor:
        sample = super().__getitem__(idx)
        return self._read_binary_tokenized_sample(sample)


def collate(sequences: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    input_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=-1)
    return {"input_ids": input_ids, "attention_mask": input_ids >= 0}


def main(args: argparse.Namespace) -> None:
    dataset = StreamingTextDataset(
        max_seq_len=32, remote=args.data, local=args.local, split="train", shuffle=True, batch_size=6, keep_zip=True
    )
    loader = DataLoader(
        dataset,
        collate_fn=collate,
        batch_size=6,
        drop_last=False,
        num_workers=2,
        prefetch_factor=2,
        persistent_workers=True,
        multiprocessing_context=args.start_method,
    )
    epoch, sample_in_epoch = 0, 0
    if args.load:
        with open(args.load) as file:
            checkpoint = json.load(file)
        epoch, sample_in_epoch = checkpoint["epoch"], checkpoint["sample_in_epoch"]
        dataset.load_state_dict(checkpoint["dataset"])
    with open(args.log, "w") as log:
        while epoch < 2:
            for batch in loader:
                rows = [row[row >= 0].numpy().tobytes() for row in batch["input_ids"]]
                log.write(json.dumps([zlib.crc32(row) for row in rows]) + "\n")
                sample_in_epoch += len(rows)
                if args.save and (epoch, sample_in_epoch) == (1, 42):
                    state = dataset.state_dict(sample_in_epoch, True)
                    with open(args.save, "w") as file:
                        json.dump({"epoch": epoch, "sample_in_epoch": sample_in_epoch, "dataset": state}, file)
                    return
            epoch, sample_in_epoch = epoch + 1, 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--local", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--save", help="stop in the second epoch and write a checkpoint there")
    parser.add_argument("--load", help="a checkpoint to resume from")
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"], help="of the loader's workers")
    main(parser.parse_args())
