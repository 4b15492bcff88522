"""The one place where exceptions become messages on stderr and exit statuses.

Also here: the exit statuses of all commands; docs/cli.md lists them.
"""

import ast
import difflib
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from enum import IntEnum
from typing import Any

import typer

from smalti.errors import ArgumentError, SmaltiError
from smalti.extras import EXTRA_OF
from smalti.redaction import redact, redact_message, word_secrets
from smalti.texts import printable


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


_NO_CHOICE = re.compile(r"'([^']*)' is not one of (.*)")
_LINES = "\n\t"  # of messages
_ARGUMENT = re.compile(r"`(\w+)`")
_WITH_OBJECT = re.compile(r"(?<!\w)(\w+)=(\{(?:[^{}]|\{[^{}]*\})*\})")
_WITH_VALUE = re.compile(r"""(?<![\w/])(\w+)=(?:(["'])([\w.-]+)\2|(\d+))(?![\w/])""")
_secrets: ContextVar[tuple[str, ...]] = ContextVar("secrets", default=())
"""The parts of the command line that may be secret, which no message shows."""


class UsageFault(typer.TyperException):
    """Arguments that are wrong together; the exit status is 2."""

    exit_code = ExitCode.USAGE


class OutputLost(Exception):  # noqa: N818 - the cause is the error
    """The output could not be written: its reader has ended, or its disk is full. The cause is an `OSError`."""


def complain(text: str) -> None:
    """Write one message to stderr, with the name of the program before it."""
    print(f"smalti: {printable(redact_message(text, _secrets.get()), keep=_LINES)}", file=sys.stderr)


def point_out(text: str) -> None:
    """Write one finding of a check to stderr."""
    print(printable(redact(text, _secrets.get()), keep=_LINES), file=sys.stderr)


def run_command(command: Callable[[], Any], options: Mapping[str, str]) -> int:
    """Run one command and return its exit status; faults of the library and of the machine are reported on stderr.

    A `ValueError` that names a parameter is one about an argument. Other exceptions are defects of Smalti and keep
    their traceback.

    Args:
        command: Does the work.
        options: The option of each parameter: messages of the library name the parameter.
    """
    try:
        return int(command() or 0)
    except SmaltiError as fault:
        complain(_by_options(str(fault), options))
        point_out(f"Help: {fault.help_url}")
        if isinstance(fault, ArgumentError):
            return int(ExitCode.USAGE)
    except ModuleNotFoundError as fault:
        name = (fault.name or "").partition(".")[0]
        if name == "smalti" or not name:
            raise
        wanted = f"smalti[{EXTRA_OF[name]}]" if name in EXTRA_OF else name
        complain(f"this command needs the package {name}, which is not installed: pip install '{wanted}'")
    except OSError as fault:
        complain(_describe(fault))
    except UnicodeEncodeError as fault:
        complain(f"{fault.object[:80]!r} is not UTF-8, as names and addresses must be")
        return int(ExitCode.USAGE)
    except ValueError as fault:
        if _ARGUMENT.search(str(fault)) is None:
            raise
        complain(_by_options(str(fault), options))  # the library names the argument that it refuses
        return int(ExitCode.USAGE)
    except KeyboardInterrupt:
        complain("interrupted")
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.FAULT)


def _by_options(text: str, options: Mapping[str, str]) -> str:
    """Return a message of the library with the options of the command line in place of the parameters.

    A parameter that takes several values has an option that is repeated, named by the singular.
    """

    def option_of(name: str) -> str | None:
        return options.get(name) or options.get(name.removesuffix("s"))

    def with_object(argument: re.Match[str]) -> str:
        name, given = argument.groups()
        try:
            value = ast.literal_eval(given)
        except (SyntaxError, ValueError):
            value = None
        if not isinstance(value, dict):
            return argument[0]
        if options.get(name):
            return f"{options[name]} {shlex.quote(_in_shell(value))}"
        option = option_of(name)
        pairs = [shlex.quote(f"{key}={_in_shell(each)}") for key, each in value.items()]
        return " ".join(f"{option} {pair}" for pair in pairs) if option else argument[0]

    def with_value(argument: re.Match[str]) -> str:
        name, value = argument[1], argument[3] or argument[4]
        return f"{options[name]} {value}" if options.get(name) else options.get(value) or argument[0]

    text = _WITH_VALUE.sub(with_value, _WITH_OBJECT.sub(with_object, text))
    return _ARGUMENT.sub(lambda name: f"`{option_of(name[1]) or name[1]}`", text)


def _in_shell(value: Any) -> str:
    """Return a value as it is written after `KEY=`: as JSON, or a text that is none."""
    if isinstance(value, str):
        with suppress(ValueError):
            json.loads(value)
            return json.dumps(value)
        return value
    return json.dumps(value, default=lambda _: "...", skipkeys=True)


def run_app(app: Callable[[], Any], words: Sequence[str] = ()) -> int:
    """Run the parsed command line and return the exit status; also for wrong arguments, Ctrl-C and a closed pipe.

    Any other exception is a defect, whose traceback is printed. The secrets in the words of the command line are masked
    in all messages to stderr.
    """
    before = _secrets.set(word_secrets(words))
    try:
        status = app()
        sys.stdout.flush()
        return int(status or 0)
    except typer.TyperException as fault:
        return _report_usage(fault)
    except typer.Abort:
        complain("interrupted")
        return int(ExitCode.INTERRUPTED)
    except OutputLost as lost:
        return _leave_stdout(lost.__cause__)
    except OSError as fault:
        return _leave_stdout(fault)
    except SystemExit as stop:
        # rich and typer end the process where stdout is closed while they print a help page.
        if isinstance(stop.__context__, BrokenPipeError):
            return _leave_stdout(stop.__context__)
        raise
    except Exception:  # noqa: BLE001 -- the traceback is printed, without secrets of the command line and environment
        from smalti.storage.redact import detect_secrets

        print(redact_message(traceback.format_exc(), (*_secrets.get(), *detect_secrets())), file=sys.stderr)
        return int(ExitCode.FAULT)
    finally:
        _secrets.reset(before)


def _leave_stdout(cause: BaseException | None) -> int:
    """Return the exit status of an output that could not be written, and close it."""
    # The interpreter flushes stdout at its end, which would fail again.
    with suppress(OSError, ValueError):  # stdout is no file in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(cause, BrokenPipeError):
        return int(ExitCode.CLOSED_PIPE)
    complain(f"the output cannot be written: {_describe(cause) if isinstance(cause, OSError) else cause}")
    return int(ExitCode.FAULT)


def _report_usage(fault: typer.TyperException) -> int:
    context = getattr(fault, "ctx", None)
    if type(fault).__name__ == "NoArgsIsHelpError":
        print(fault.message)
        return int(ExitCode.USAGE)
    near = sorted(getattr(fault, "possibilities", None) or ())
    text = fault.message if near else fault.format_message().replace("Value error, ", "")
    if (choice := _NO_CHOICE.search(text)) is not None:
        near = difflib.get_close_matches(choice[1], re.findall(r"'([^']*)'", choice[2]))
    complain(f"{text.rstrip('.')}. Did you mean {' or '.join(near)}?" if near else text)
    if context is not None:
        print(context.get_usage(), file=sys.stderr)
        print(f"`{context.command_path} --help` explains them.", file=sys.stderr)
    return fault.exit_code


def _describe(fault: OSError) -> str:
    if fault.strerror is None:
        return str(fault) or type(fault).__name__
    return f"{fault.filename}: {fault.strerror}" if fault.filename is not None else fault.strerror
