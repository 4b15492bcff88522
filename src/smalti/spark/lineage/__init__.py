"""The source of a DataFrame's rows: its files and tables, and a digest by which a repeated write is recognised.

Nothing here reads rows. What the manifest keeps of it is the catalogue's. Read `source.py` first.
"""
