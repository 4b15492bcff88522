"""The datasets whose samples are texts, and which return tokens. Needs `transformers`."""

from typing import Any, ClassVar, Unpack

from smalti.compat.streaming.base.arguments import DatasetArguments, with_defaults, with_signature
from smalti.compat.streaming.base.dataset import StreamingDataset
from smalti.errors import MissingDependency

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
    def __init__(
        self, *, tokenizer_name: str, max_seq_len: int, group_method: str, **arguments: Unpack[DatasetArguments]
    ) -> None:
        if group_method not in _METHODS:
            raise ValueError(self._unknown_group_method.format(f"group_method={group_method!r}"))
        super().__init__(**with_defaults(arguments))
        self.tokenizer_name = tokenizer_name
        self.max_seq_len = max_seq_len
        self.group_method = group_method
        self.tokenizer = _load_tokenizer(tokenizer_name)

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


def _load_tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependency("tokenizers of Hugging Face need `pip install transformers`") from error
    tokenizer: Any = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:  # GPT-2's, for example
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
