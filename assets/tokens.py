"""The data set `tokens`: documents as Spark reads them, and a function that packs them into blocks of tokens.

A stand-in for a tokenizer of your own: a token is a byte of UTF-8 plus one, and 0 ends a document.
"""

import os
from typing import Any

import numpy as np
import pyarrow as pa

from smalti.spark.lineage import table_state

BLOCK = 128
"""Tokens of a row."""

END = 0
"""Token between two documents, and after the last one of a batch up to the end of its block."""

_DOCUMENTS = 2_000  # generated ones
_WORDS = ("the", "a", "red", "small", "old", "flower", "garden", "river", "grows", "sleeps", "near", "under", "and")


def documents(spark: Any) -> Any:
    """Return a Spark DataFrame with one row for each document, and the column `text`."""
    if path := os.environ.get("TOKENS_TEXT"):
        return spark.read.text(path).selectExpr("value AS text")
    words = ", ".join(f"'{word}'" for word in _WORDS)
    word = f"element_at(array({words}), int(pmod(xxhash64(id, i), {len(_WORDS)})) + 1)"
    length = "int(10 + pmod(xxhash64(id), 30))"
    sentence = f"array_join(transform(sequence(1, {length}), i -> {word}), ' ')"
    return spark.range(_DOCUMENTS).selectExpr(f"concat(id, ' ', {sentence}) AS text")


def version() -> str | None:
    """Return a text that is another one when the documents are; None if only Spark can decide it."""
    path = os.environ.get("TOKENS_TEXT")
    if not path:
        return "generated"
    state = table_state(path, "text")
    return f"{path} {state.digest}" if state.is_certain else None


def tokenize(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the documents of a batch as blocks of tokens; a block may hold parts of several documents."""
    texts = batch.column("text").to_pylist()
    pieces = [np.frombuffer(f"{text}".encode(), np.uint8).astype(np.int32) + 1 for text in texts if text]
    stream = [part for piece in pieces for part in (piece, np.array([END], np.int32))]
    tokens = np.concatenate(stream) if stream else np.empty(0, np.int32)
    tokens = np.pad(tokens, (0, -len(tokens) % BLOCK), constant_values=END)
    blocks = pa.FixedSizeListArray.from_arrays(pa.array(tokens), BLOCK).cast(pa.list_(pa.int32()))
    return pa.RecordBatch.from_arrays([blocks], names=["tokens"])
