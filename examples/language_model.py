"""A language model as a task of the built-in trainer: the next token of each token of a block, with its perplexity.

    python examples/language_model.py DATA RUN_DIR VOCABULARY

DATA is a set of blocks of equally many tokens, such as one that docs/text.md writes. In a configuration of a copy of
this file the task is `task: language_model:LanguageModel`, and its `task_options` are the fields of the class.
"""
# ruff: noqa: ARG002 - the arguments of a task's methods

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch.nn import functional
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from smalti.errors import SchemaError
from smalti.torch.train import Batch, Outcome, Task, TrainConfig, train

_NOT_A_TARGET = -100
_LARGEST = 700.0  # exponent of a double

Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class LanguageModel(Task):
    """The next token of blocks of tokens: a small GPT, or the one that `TrainConfig.weights` names."""

    main_metric = "perplexity"
    free_options = ("label_smoothing",)
    data_options = ("column", "vocabulary", "ignore")

    column: str = "tokens"
    vocabulary: NonNegativeInt = 0
    """Number of different tokens, counted from 0; pretrained weights have their own."""
    block: PositiveInt = 1024
    """Longest block that the model can take."""
    layers: PositiveInt = 4
    heads: PositiveInt = 4
    width: PositiveInt = 128
    dropout: Fraction = 0.1
    ignore: int | None = None
    """A token that need not be predicted, such as padding."""
    label_smoothing: Fraction = 0.1
    """Smoothing of tokens, in training."""

    def check(self, config: TrainConfig, columns: Mapping[str, str]) -> None:
        """Check that the data have the column of tokens."""
        if self.column not in columns:
            raise SchemaError(f"the task reads the column '{self.column}', but {config.data} has {sorted(columns)}.")

    def build_model(self, config: TrainConfig) -> torch.nn.Module:
        """Return the language model."""
        if ":" in config.model:
            raise SchemaError(f"`model` is '{config.model}', but the task builds its own: replace `build_model`.")
        if config.weights is not None:
            return AutoModelForCausalLM.from_pretrained(config.weights, use_safetensors=True, use_cache=False)
        if self.vocabulary < 2:
            raise SchemaError(f"`vocabulary` is {self.vocabulary}; expected the number of different tokens.")
        settings = GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=self.block,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            # A tokenizer's, which a set of tokens does not name.
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        return GPT2LMHeadModel(settings)

    def batch(
        self, columns: Mapping[str, Any], config: TrainConfig, device: torch.device, *, epoch: int | None
    ) -> Batch:
        """Return blocks of tokens as int64, shape (n, length); refuse other blocks, and tokens that are none."""
        tokens = columns[self.column]
        if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
            raise SchemaError(
                f"column '{self.column}' of {config.data}: expected blocks of equally many whole numbers, such as the "
                "encoding ndarray:int32:128."
            )
        wrong = (tokens < 0) | ((tokens >= self.vocabulary) if self.vocabulary else False)
        if bool(wrong.any()):
            row, place = wrong.nonzero()[0].tolist()
            raise SchemaError(
                f"column '{self.column}' of sample {int(columns['_sample_id'][row])} holds the token "
                f"{int(tokens[row, place])}, but tokens must lie in [0, {self.vocabulary or 'vocabulary'})."
            )
        marks = {name: columns[name] for name in ("_sample_id", "_position")}
        return super().batch({self.column: tokens.long(), **marks}, config, device, epoch=epoch)

    def loss(self, model: torch.nn.Module, batch: Batch, config: TrainConfig) -> Outcome:
        """Return the mean cross entropy of each block's tokens but the first."""
        tokens = batch[self.column]
        targets = tokens[:, 1:]
        ignored = _NOT_A_TARGET if self.ignore is None else self.ignore
        losses = functional.cross_entropy(
            model(tokens).logits[:, :-1].float().transpose(1, 2),
            targets,
            reduction="none",
            ignore_index=ignored,
            label_smoothing=self.label_smoothing if model.training else 0.0,
        )
        counted = (targets != ignored).sum(dim=1)
        sums = losses.sum(dim=1)
        return Outcome(sums / counted.clamp(min=1), {"token_loss": sums.detach(), "tokens": counted})

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the perplexity: of all tokens that count, each as much as any other."""
        mean = means["token_loss"] / means["tokens"] if means["tokens"] else 0.0
        return {"perplexity": math.exp(min(mean, _LARGEST)) if math.isfinite(mean) else mean}

    def predictions(self, model: torch.nn.Module, batch: Batch, config: TrainConfig) -> dict[str, Any]:
        """Return the token that follows each block, after its last one that is not ignored, and its probability."""
        tokens = batch[self.column]
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        last = places if self.ignore is None else places.masked_fill(tokens == self.ignore, 0)
        rows = torch.arange(len(tokens), device=tokens.device)
        best = model(tokens).logits[rows, last.amax(dim=-1)].float().softmax(dim=1).max(dim=1)
        return {"predicted": best.indices, "confidence": best.values}

    def example(self, config: TrainConfig, device: torch.device) -> Batch:
        """Return two short blocks."""
        blocks = {self.column: torch.zeros(2, min(8, self.block), dtype=torch.int64)}
        marks = {name: torch.zeros(2, dtype=torch.int64) for name in ("_sample_id", "_position")}
        return super().batch({**blocks, **marks}, config, device, epoch=None)

    def load_model(self, folder: Path, config: TrainConfig) -> torch.nn.Module:
        """Return the language model in a folder, which the trainer has saved in the layout of transformers."""
        return AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True)


if __name__ == "__main__":
    data, run_dir, vocabulary = sys.argv[1:]
    task = f"{Path(__file__).stem}:LanguageModel"  # this file, which the processes of a run import
    config = TrainConfig(data=data, run_dir=run_dir, task=task, task_options={"vocabulary": int(vocabulary)})
    print(train(config).metrics)  # noqa: T201
