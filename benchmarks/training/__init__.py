"""Training under each launcher: the sets, the loop over batches from the loader and from memory, and a process that
takes training steps when it is asked to."""
