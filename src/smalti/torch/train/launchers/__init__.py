"""The launchers: starting the ranks of a run in this process, in child processes, or through Spark."""
