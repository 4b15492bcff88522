"""Training data of a diffusion model: captioned pictures of several streams, through `self.transform`.

The training loop counts batches; a restarted run passes their number on to the data set.
"""

import argparse
import json
import zlib
from typing import Callable, Optional, Sequence

import numpy as np
import torch
from PIL import Image
from streaming import Stream, StreamingDataset
from torch.utils.data import DataLoader


def crop_and_scale(image: Image.Image) -> torch.Tensor:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1


class StreamingImageCaptionDataset(StreamingDataset):
    """Pictures, transformed, and their captions."""

    def __init__(
        self,
        streams: Optional[Sequence[Stream]] = None,
        remote: Optional[str] = None,
        local: Optional[str] = None,
        transform: Optional[Callable] = None,
        image_key: str = "image",
        caption_key: str = "caption",
        caption_drop_prob: float = 0.0,
        **streaming_kwargs,
    ) -> None:
        streaming_kwargs.setdefault("shuffle_block_size", 1 << 18)
        streaming_kwargs.setdefault("shuffle_algo", "py1s")
        super().__init__(streams=streams, remote=remote, local=local, **streaming_kwargs)
        self.transform = transform
        self.image_key = image_key
        self.caption_key = caption_key
        self.caption_drop_prob = caption_drop_prob

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        image = sample[self.image_key]
        if image.mode != "RGB":
            image = image.convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        drop = self.caption_drop_prob > 0 and torch.rand(1) < self.caption_drop_prob
        return {"image": image, "caption": "" if drop else sample[self.caption_key], "key": sample["key"]}


def build_dataloader(remotes: list[str], locals_: list[str], batch_size: int, **kwargs) -> DataLoader:
    streams = [Stream(remote=remote, local=local) for remote, local in zip(remotes, locals_)]
    dataset = StreamingImageCaptionDataset(
        streams=streams, transform=crop_and_scale, shuffle=True, batch_size=batch_size, predownload=16, **kwargs
    )
    return DataLoader(dataset=dataset, batch_size=batch_size, sampler=None, drop_last=True, num_workers=1)


def main(args: argparse.Namespace) -> None:
    parts = range(2)
    loader = build_dataloader(
        [f"{args.data}/{part}" for part in parts],
        [f"{args.local}/{part}" for part in parts],
        batch_size=8,
        validate_hash="xxh64",
        num_canonical_nodes=2,
    )
    done = 0
    if args.load:
        with open(args.load) as file:
            checkpoint = json.load(file)
        done = checkpoint["batch"]
        loader.dataset.load_state_dict(checkpoint["data"])
    with open(args.log, "w") as log:
        for batch in loader:
            pixels = [zlib.crc32(image.numpy().tobytes()) for image in batch["image"]]
            log.write(json.dumps([batch["caption"], batch["key"].tolist(), pixels]) + "\n")
            done += 1
            if args.save and done == 5:
                with open(args.save, "w") as file:
                    json.dump({"batch": done, "data": loader.dataset.state_dict(8 * done, from_beginning=True)}, file)
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--local", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--save")
    parser.add_argument("--load")
    main(parser.parse_args())
