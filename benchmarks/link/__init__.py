"""Reading over a link that is slow in a known way: a local S3 server with 30 ms before every reply and 200 MB/s in all.

The server runs beside what is measured, on the same cores: how much of them each of the two took stands in the figures.
"""
