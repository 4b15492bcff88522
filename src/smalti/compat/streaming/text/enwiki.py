"""`StreamingEnWiki`: masked tokens of the English Wikipedia of 2020-01-01."""

from typing import Any, Unpack

import numpy as np

from smalti.compat.streaming.base.arguments import DatasetArguments, with_defaults, with_signature
from smalti.compat.streaming.base.dataset import StreamingDataset

__all__ = ["StreamingEnWiki"]

_IGNORED = -100
"""Label of the tokens that are not masked, which torch's cross entropy leaves out."""
_FIELDS = (
    "input_ids", "input_mask", "attention_mask", "segment_ids", "token_type_ids", "masked_lm_positions",
    "masked_lm_ids", "masked_lm_weights", "next_sentence_labels", "labels",
)  # fmt: skip


class StreamingEnWiki(StreamingDataset):
    """A dataset of token ids, as the pre-training of BERT takes them; columns are the bytes of arrays.

    Args:
        arguments: Arguments of `StreamingDataset`.
    """

    @with_signature
    def __init__(self, **arguments: Unpack[DatasetArguments]) -> None:
        super().__init__(**with_defaults(arguments))
        self.field_dtypes = {name: np.int32 if name != "masked_lm_weights" else np.float32 for name in _FIELDS}

    def get_item(self, idx: int) -> Any:  # type: ignore[override]  # MosaicML's
        """Return the sample of this number: arrays for the model, with a label at every masked position."""
        fields = {name: np.frombuffer(data, self.field_dtypes[name]) for name, data in super().get_item(idx).items()}
        labels = np.full(len(fields["input_ids"]), _IGNORED)
        labels[fields["masked_lm_positions"]] = fields["masked_lm_ids"]
        return {
            "input_ids": fields["input_ids"].copy(),
            "token_type_ids": fields["segment_ids"].copy(),
            "attention_mask": fields["input_mask"].copy(),
            "labels": labels,
        }
