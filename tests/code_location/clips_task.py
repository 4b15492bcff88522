"""A task for videos and sounds, which PyAV decodes."""

import io

import av
import numpy as np
import torch

from smalti.torch.train import Outcome, Task

KINDS = ["fading", "rising"]


def decode(sample):
    with av.open(io.BytesIO(sample["video"])) as file:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    with av.open(io.BytesIO(sample["sound"])) as file:
        sound = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    label = {"label": KINDS.index(sample["kind"])} if "kind" in sample else {}  # none in samples to predict for
    return {"frames": frames, "sound": sound.astype(np.float32) / 32768, **label}


class Clips(Task):
    main_metric, higher_is_better = "accuracy", True

    def transform(self, config, *, training):
        return decode

    def build_model(self, config):
        return torch.nn.Linear(3, len(KINDS))

    def scores(self, model, batch):
        light = batch["frames"].float().mean((2, 3, 4)) / 255  # of each frame
        loud = torch.stack([torch.as_tensor(sound).abs().mean() for sound in batch["sound"]]).to(light.device)
        return model(torch.stack([light[:, 0], light[:, -1], loud], dim=1))

    def loss(self, model, batch, config):
        scores, label = self.scores(model, batch), batch["label"]
        losses = torch.nn.functional.cross_entropy(scores, label, reduction="none")
        return Outcome(losses, {"accuracy": (scores.argmax(dim=1) == label).float()})

    def predictions(self, model, batch, config):
        best = self.scores(model, batch).softmax(dim=1).max(dim=1)
        return {"predicted_kind": [KINDS[number] for number in best.indices.tolist()], "confidence": best.values}
