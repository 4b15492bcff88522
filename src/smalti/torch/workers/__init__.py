"""Loader workers, as threads and as processes: starting them, the state they share, and how batches come back.

What they read is planned in `smalti.dataset`; `smalti.torch.loader` puts the parts together. Start reading at
`threads`, then `ring` (shared memory for batches) and `sharing` (epochs under torch's own DataLoader).
"""
