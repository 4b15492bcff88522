"""The functions that the data sets of this deployment name: `tokens` makes rows of text, `drawing` draws flowers."""
