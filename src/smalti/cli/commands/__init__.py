"""The commands of the command line: one module per group, each with `add_..._commands(app)`."""
