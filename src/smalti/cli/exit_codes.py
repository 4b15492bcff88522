"""The exit statuses of all commands; docs/cli.md lists them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of a command."""

    OK = 0
    """The command did what it was asked to do."""
    FAULT = 1
    """An error of the library, of a store or of this machine; stderr says which."""
    USAGE = 2
    """Wrong arguments; nothing was read or changed."""
    NOT_VERIFIED = 3
    """A check found something that is not as declared."""
    DIFFERS = 4
    """A comparison found a difference."""
    INTERRUPTED = 130
    """Ctrl-C."""
    CLOSED_PIPE = 141
    """The reader of the output has ended, as `head` does."""
