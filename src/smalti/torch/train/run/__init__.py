"""The files of a run: its checkpoints, log of events and result, in a local folder or in a store."""
