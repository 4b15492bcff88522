"""The built-in trainer: its loop, the step of the optimiser, evaluation, and the `Task` that says what is learned."""
