"""Tasks of rows, which read some columns of the data as they are stored.

`LanguageModel`: the next token of each token of a block, cross entropy and perplexity. `TabularRegression`: a number
from the numbers of a row, mean squared and absolute error, and R².
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from smalti.errors import SchemaError
from smalti.torch.train.config import LanguageOptions, TabularOptions, TrainConfig
from smalti.torch.train.trainer.models import load_transformers_model, logits_of, model_from_function, pretrained
from smalti.torch.train.trainer.task import MARKS, Batch, Outcome, Task, blank_batch, on_device, whole_numbers
from smalti.torch.train.values import plain


@dataclass(frozen=True)
class KeptColumns:
    """A transform of batches that leaves some columns."""

    names: tuple[str, ...]

    on_batches = True
    thread_safe = True

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns; samples that are to be predicted need not have all of them."""
        return {name: batch[name] for name in self.names if name in batch}


class ColumnsTask(Task):
    """The base of tasks whose samples are the values of some columns."""

    described: ClassVar[tuple[str, ...]]
    """Options that a user of the model has to know."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        raise NotImplementedError(f"{type(self).__name__} has no `columns`")

    def check(self, config: TrainConfig, columns: Mapping[str, str]) -> None:
        """Check that the data have the columns."""
        for name in self.columns:
            if name not in columns:
                raise SchemaError(
                    f"task '{config.task}' reads the column '{name}', but {config.data} has the columns "
                    f"{', '.join(sorted(columns))}.",
                    column=name,
                )

    def transform(self, config: TrainConfig, *, training: bool) -> Callable[[Any], Any]:  # noqa: ARG002
        """Return a transform that leaves the columns only."""
        return KeptColumns(self.columns)

    def wrong_value(self, columns: Mapping[str, Any], row: int, name: str, words: str) -> SchemaError:
        """Return the error of a value in a row of a batch."""
        sample = int(whole_numbers(columns["_sample_id"])[row])
        return SchemaError(f"column '{name}' of sample {sample} holds {words}", column=name, sample_id=sample)

    def describe(self, config: TrainConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return the options that a user of the model has to know."""
        return {name: plain(getattr(self, name)) for name in self.described}


# ------------------------------------------------------------ language


_KIND = "AutoModelForCausalLM"
_NOT_A_TARGET = -100
_LARGEST = 700.0  # exponent of a double


class LanguageModel(LanguageOptions, ColumnsTask):
    """The next token, of blocks of equally many tokens.

    The model is a small GPT of the sizes in `LanguageOptions`; that of `TrainConfig.weights`, a folder or hub name of a
    causal language model of transformers; or that of `TrainConfig.model` if it is `module:function`.
    """

    main_metric = "perplexity"
    described = ("column", "vocabulary")

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
            words = (
                f"the token {int(tokens[row, place])}, but tokens must lie in [0, {self.vocabulary or 'vocabulary'}); "
                "set `vocabulary` to what the data hold."
            )
            raise self.wrong_value(columns, row, self.column, words)
        return on_device({**columns, self.column: tokens.long()}, device)

    def loss(self, model: nn.Module, batch: Batch, config: TrainConfig) -> Outcome:  # noqa: ARG002
        """Return the mean cross entropy of each block's tokens but the first."""
        tokens = batch[self.column]
        targets = tokens[:, 1:]
        ignored = _NOT_A_TARGET if self.ignore is None else self.ignore
        logits = logits_of(model(tokens))[:, :-1].float()
        smoothing = self.label_smoothing if model.training else 0.0
        losses = functional.cross_entropy(
            logits.transpose(1, 2), targets, reduction="none", ignore_index=ignored, label_smoothing=smoothing
        )
        counted = (targets != ignored).sum(dim=1)
        sums = losses.sum(dim=1)
        return Outcome(sums / counted.clamp(min=1), {"token_loss": sums.detach(), "tokens": counted})

    def predictions(self, model: nn.Module, batch: Batch, config: TrainConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return the token that follows each block, after its last one that is not ignored, and its probability."""
        tokens = batch[self.column]
        places = torch.arange(tokens.shape[1], device=tokens.device)
        last = places.expand_as(tokens).masked_fill(tokens == self.ignore, 0) if self.ignore is not None else places
        rows = torch.arange(len(tokens), device=tokens.device)
        best = logits_of(model(tokens))[rows, last.amax(dim=-1)].float().softmax(dim=1).max(dim=1)
        return {"predicted": best.indices, "confidence": best.values}

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


# ------------------------------------------------------------ tables


class TabularRegression(TabularOptions, ColumnsTask):
    """A column of numbers from others. The model has layers of `hidden` units, or is that of `module:function`.

    The features are brought to mean 0 and deviation 1 by batch normalisation; the target by `target_mean` and
    `target_scale`, in whose units the loss is. The figures are in the units of the target.
    """

    main_metric = "mean_squared_error"
    described = ("features", "target", "target_mean", "target_scale")

    @property
    def columns(self) -> tuple[str, ...]:
        """The features and the target."""
        return (*self.features, self.target)

    def build_model(self, config: TrainConfig) -> nn.Module:
        """Return the network: (n, features) to (n, 1)."""
        if ":" in config.model:
            return model_from_function(config)
        sizes = (len(self.features), *self.hidden)
        layers: list[nn.Module] = [nn.BatchNorm1d(sizes[0], affine=False)]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(self.dropout)]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def batch(
        self,
        columns: Mapping[str, Any],
        config: TrainConfig,
        device: torch.device,
        *,
        epoch: int | None,  # noqa: ARG002
    ) -> Batch:
        """Return features, float32 of shape (n, features), and targets if any, float64 of shape (n,).

        Raises:
            SchemaError: a value is no finite number.
        """
        names = self.columns if self.target in columns else self.features  # without it in rows to be predicted
        values = np.column_stack([self._numbers(columns, name, config) for name in names])
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            row, place = wrong[0].tolist()
            advice = "fill or leave out such rows when the data are written."
            words = f"{values[row, place]}; expected a finite number: {advice}"
            raise self.wrong_value(columns, row, names[place], words)
        marks = {name: columns[name] for name in MARKS}
        inputs = {"features": torch.from_numpy(values[:, : len(self.features)].astype(np.float32))}
        target = {"target": torch.from_numpy(values[:, -1].copy())} if self.target in names else {}
        return on_device({**inputs, **target, **marks}, device)

    def loss(self, model: nn.Module, batch: Batch, config: TrainConfig) -> Outcome:  # noqa: ARG002
        """Return the squared errors in units of `target_scale`."""
        target = (batch["target"] - self.target_mean) / self.target_scale
        output = model(batch["features"]).float().reshape(-1)
        errors = output.detach().double() - target
        scores = {
            "squared_error": errors.square(),
            "absolute_error": errors.abs(),
            "target": target,
            "squared_target": target.square(),
        }
        return Outcome((output - target.float()).square(), scores, outputs=output.detach(), targets=target)

    def predictions(self, model: nn.Module, batch: Batch, config: TrainConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return the number that the model expects, in the units of the target."""
        output = model(batch["features"]).double().reshape(-1)
        return {"predicted": output * self.target_scale + self.target_mean}

    def example(self, config: TrainConfig, device: torch.device) -> Batch:  # noqa: ARG002
        """Return two rows of zeros."""
        zeros = {"features": torch.zeros(2, len(self.features)), "target": torch.zeros(2, dtype=torch.float64)}
        return blank_batch(zeros, device)

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the mean squared and absolute error, and R²: 0 of a target that is everywhere the same."""
        variance = means["squared_target"] - means["target"] ** 2
        return {
            "mean_squared_error": means["squared_error"] * self.target_scale**2,
            "mean_absolute_error": means["absolute_error"] * self.target_scale,
            "r2": 1.0 - means["squared_error"] / variance if variance > 0 else 0.0,
        }

    def _numbers(self, columns: Mapping[str, Any], name: str, config: TrainConfig) -> Any:
        values = np.asarray(columns[name])
        is_null = columns.get(f"{name}__is_null")
        if values.ndim > 2 or values.dtype.kind not in "biuf" or values.size != len(values):
            raise SchemaError(
                f"column '{name}' of {config.data} has {values.dtype} of shape {values.shape} in a batch; expected one "
                "number for each row.",
                column=name,
            )
        values = values.reshape(-1).astype(np.float64)
        return values if is_null is None else np.where(np.asarray(is_null), np.nan, values)
