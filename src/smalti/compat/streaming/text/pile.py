"""`StreamingPile`."""

from smalti.compat.streaming.text.tokenized import TokenizedDataset

__all__ = ["StreamingPile"]


class StreamingPile(TokenizedDataset):
    """Tokens of the Pile, as `text.convert.pile` writes it."""
