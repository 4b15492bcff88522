"""The storage of Spark's columns: the table of types, null policies, and conversions of Arrow values.

What the encodings do with the values is in `smalti.format`; reading them back is in `smalti.format.logical`. Read
`types.py`, the table, first; `columns.py` plans a whole DataFrame by it.
"""
