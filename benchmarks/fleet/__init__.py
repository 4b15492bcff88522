"""A simulated fleet: hosts that read one shard set from one store, by Smalti's own order, division and cache decisions.

Here: `setting` (sets, fleets, stores, and their figures), `needs` (from an order to the shards that a host needs),
`store` (a model of the store and the link), `hosts` (prefetch and eviction of one host), `simulation` (a fleet in
step), `sweep` and `picture` (the results that docs/scale.md shows).
Nothing is read or fetched here. Read `simulation` first.
"""
