"""`StreamingC4`."""

from smalti.compat.streaming.text.tokenized import TokenizedDataset

__all__ = ["StreamingC4"]


class StreamingC4(TokenizedDataset):
    """Tokens of the Colossal Cleaned Common Crawl."""
