"""Datasets of text that MosaicML defines, without its conversion scripts; those of tokens need `transformers`."""

from typing import Any, ClassVar

import numpy as np

from smalti.compat.paths import serve
from smalti.compat.streaming.base.dataset import StreamingDataset, with_defaults, with_signature
from smalti.errors import MissingDependency

__all__ = ["StreamingC4", "StreamingEnWiki", "StreamingPile"]

_METHODS = ("truncate",)


class TokenizedDataset(StreamingDataset):
    """A dataset of texts; a sample is what a tokenizer of Hugging Face makes of the text, cut or padded to a length.

    Args:
        tokenizer_name: Name or folder of the tokenizer.
        max_seq_len: Tokens of a sample.
        group_method: How texts become samples: `truncate`, one sample for each.
        arguments: Arguments of `StreamingDataset`.

    Raises:
        ValueError: `group_method` is another.
        MissingDependency: `transformers` is not installed.
    """

    _unknown_group_method: ClassVar[str] = "{} must be one of {{'truncate'}}."
    """Message for another `group_method`, which is filled in."""

    @with_signature
    def __init__(self, *, tokenizer_name: str, max_seq_len: int, group_method: str, **arguments: Any) -> None:
        if group_method not in _METHODS:
            raise ValueError(self._unknown_group_method.format(f"group_method={group_method!r}"))
        super().__init__(**with_defaults(arguments))
        self.tokenizer_name = tokenizer_name
        self.max_seq_len = max_seq_len
        self.group_method = group_method
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise MissingDependency("tokenizers of Hugging Face need `pip install transformers`") from error
        self.tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_name)
        if self.tokenizer.pad_token is None:  # GPT-2's, for example
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def get_item(self, idx: int) -> Any:  # type: ignore[override]  # MosaicML's
        """Return the tokens of the sample of this number."""
        return self._tokenize(super().get_item(idx))

    def _tokenize(self, text_sample: dict[str, Any]) -> Any:
        return self.tokenizer(text_sample["text"], truncation=True, padding="max_length", max_length=self.max_seq_len)


class StreamingC4(TokenizedDataset):
    """Tokens of the Colossal Cleaned Common Crawl."""


class StreamingPile(TokenizedDataset):
    """Tokens of the Pile, as MosaicML's script writes it."""

    _unknown_group_method: ClassVar[str] = 'Only group_method="truncate" is supported at this time. Found {}.'


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
    def __init__(self, **arguments: Any) -> None:
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


serve(__name__, "c4", "enwiki", "pile")
