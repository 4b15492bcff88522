"""The soak: training jobs on one host share a cache while faults are planted and processes killed, one after the other.

    make soak                                     ten minutes: a fault every 5 s, a kill -9 every 30 s
    make soak SECONDS=60 ARGS="--seed 7"
    .venv/bin/python -m benchmarks.soak --seconds 20 --small --fault-every 1.5 --kill-every 6

Every sample's bytes are compared with what its id says, and ledgers prove that each was taken once in each epoch. What
is wrong stands in the report, and makes the exit status 1.
"""
