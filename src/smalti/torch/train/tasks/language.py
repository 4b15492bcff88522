"""Causal language modelling: the next token of each token of a block, cross entropy and perplexity."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from smalti.errors import SchemaError
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.tasks.columns import ColumnsTask, blank_batch
from smalti.torch.train.trainer.models import load_transformers_model, logits_of, model_from_function, pretrained
from smalti.torch.train.trainer.task import Batch, Outcome, on_device, whole_numbers

_KIND = "AutoModelForCausalLM"
_NOT_A_TARGET = -100
_LARGEST = 700.0  # exponent of a double


@dataclass(frozen=True)
class LanguageModel(ColumnsTask):
    """The next token, of blocks of equally many tokens.

    The model is a small GPT of these sizes; that of `TrainConfig.weights`, a folder or hub name of a causal language
    model of transformers; or that of `TrainConfig.model` if it is `module:function`.
    """

    column: str = "tokens"
    vocabulary: int = 0
    """Number of different tokens, counted from 0; not of pretrained weights, which have their own."""
    block: int = 1024
    """Longest block that the model can take."""
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.1
    ignore: int | None = None
    """A token that need not be predicted, such as padding."""

    main_metric = "perplexity"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of tokens."""
        return (self.column,)

    def build_model(self, config: TrainConfig) -> nn.Module:
        """Return the language model."""
        if ":" in config.model:
            return model_from_function(config)
        if config.weights is not None:
            return pretrained(config, _KIND, use_cache=False)
        if self.vocabulary < 2:
            raise SchemaError(
                f"`vocabulary` of task '{config.task}' is {self.vocabulary}; expected the number of different tokens.",
                vocabulary=self.vocabulary,
            )
        from transformers import GPT2Config, GPT2LMHeadModel

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
        model: nn.Module = GPT2LMHeadModel(settings)
        return model

    def batch(
        self,
        columns: Mapping[str, Any],
        config: TrainConfig,
        device: torch.device,
        *,
        epoch: int | None,  # noqa: ARG002
    ) -> Batch:
        """Return blocks of tokens as int64, shape (n, length).

        Raises:
            SchemaError: a block has another length than the others, or a token that is none.
        """
        tokens = columns[self.column]
        if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
            found = tuple(tokens.shape) if isinstance(tokens, torch.Tensor) else type(tokens).__name__
            raise SchemaError(
                f"column '{self.column}' of {config.data} is {found} in a batch; expected blocks of equally many whole "
                "numbers, such as the encoding ndarray:int32:128.",
                column=self.column,
            )
        wrong = (tokens < 0) | ((tokens >= self.vocabulary) if self.vocabulary else False)
        if bool(wrong.any()):
            row, place = wrong.nonzero()[0].tolist()
            sample = int(whole_numbers(columns["_sample_id"])[row])
            raise SchemaError(
                f"column '{self.column}' of sample {sample} holds the token {int(tokens[row, place])}, but tokens must "
                f"lie in [0, {self.vocabulary or 'vocabulary'}); set `vocabulary` to what the data hold.",
                column=self.column,
                sample_id=sample,
            )
        return on_device({**columns, self.column: tokens.long()}, device)

    def loss(self, model: nn.Module, batch: Batch, config: TrainConfig) -> Outcome:
        """Return the mean cross entropy of each block's tokens but the first."""
        tokens = batch[self.column]
        targets = tokens[:, 1:]
        if self.ignore is not None:
            targets = targets.masked_fill(targets == self.ignore, _NOT_A_TARGET)
        logits = logits_of(model(tokens))[:, :-1].float()
        smoothing = config.label_smoothing if model.training else 0.0
        losses = functional.cross_entropy(
            logits.transpose(1, 2), targets, reduction="none", ignore_index=_NOT_A_TARGET, label_smoothing=smoothing
        )
        counted = (targets != _NOT_A_TARGET).sum(dim=1)
        sums = losses.sum(dim=1)
        return Outcome(sums / counted.clamp(min=1), {"token_loss": sums.detach(), "tokens": counted})

    def example(self, config: TrainConfig, device: torch.device) -> Batch:  # noqa: ARG002
        """Return two short blocks."""
        return blank_batch({self.column: torch.zeros(2, min(8, self.block), dtype=torch.int64)}, device)

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the perplexity: of all tokens that count, each as much as any other."""
        mean = means["token_loss"] / means["tokens"] if means["tokens"] else 0.0
        return {"perplexity": math.exp(min(mean, _LARGEST)) if math.isfinite(mean) else mean}

    def load_model(self, folder: Path, config: TrainConfig) -> nn.Module:
        """Return the language model in a folder."""
        found = load_transformers_model(folder, _KIND)
        return super().load_model(folder, config) if found is None else found

    def describe(self, config: TrainConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return the column of tokens, and the number of different ones."""
        return {"column": self.column, "vocabulary": self.vocabulary}
