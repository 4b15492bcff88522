"""The registration of commands: typed functions whose options may come in groups, with examples at the end of the help.

A parameter whose annotation is a dataclass is a group of options that several commands share, such as `CommonOptions`:
typer sees the fields of the dataclass in its place, and the function receives an instance. A group may have a `PANEL`,
the heading of its options in the help.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from smalti.cli.faults import UsageFault, run_command

LOOK = "Look at data"
VERSIONS = "Versions"
CHANGE = "Make, move and change data"
TRAINING = "Training"
MACHINE = "This machine"
PANELS = (LOOK, VERSIONS, CHANGE, TRAINING, MACHINE)
"""Headings of the commands in `smalti --help`, in this order."""


class Command(TyperCommand):
    """A command. Empty arguments are refused: a variable of the shell that is not set would name the working folder."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments of the command."""
        for before, word in zip(["", *args], args, strict=False):
            option = word[:-1] if word.startswith("--") and word.partition("=")[1:] == ("=", "") else ""
            if not word or option:
                about = option or (before if before.startswith("--") else "an argument")
                raise UsageFault(f"{about}: the value is empty; give one, or leave it out")
        return super().parse_args(ctx, args)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the parameters."""
        return _without_bool(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """A group of commands that lists them by their headings."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the parameters."""
        return _without_bool(super().get_params(ctx))

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of the commands, in the order of `PANELS`."""
        del ctx
        return sorted(self.commands, key=lambda name: PANELS.index(self._panel(name)))

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the plain list of commands: each with the whole first paragraph of its help, by headings."""
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        for panel in dict.fromkeys(map(self._panel, names)):
            rows = [
                (name.ljust(width), (self.commands[name].help or "").partition("\n\n")[0])
                for name in names
                if self._panel(name) == panel and not self.commands[name].hidden
            ]
            with formatter.section(panel if ctx.parent is None else "Commands"):
                formatter.write_dl(rows)

    def _panel(self, name: str) -> str:
        panel = getattr(self.commands[name], "rich_help_panel", None)
        return panel if panel in PANELS else LOOK


def make_app(**settings: Any) -> typer.Typer:
    """Return an app: boxes and colours in the help only where stdout is a terminal."""
    return typer.Typer(
        cls=CommandGroup,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        **settings,
    )


_commands: list[tuple[Callable[..., Any], str, str | None]] = []
"""Each command, its name, and its panel."""
_groups: dict[str, tuple[str, str]] = {}
"""Text and panel of each group, by name."""


def command(name: str, *, panel: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that declares a function as a command.

    Its docstring is the help; in the section Examples are command lines, at least one: docs/cli.md shows their output.
    It returns an `ExitCode`, or None for success; `smalti.cli.faults` reports its exceptions.

    Args:
        name: Name of the command, with that of its group before it.
        panel: Heading in `smalti --help`, one of `PANELS`; None in a group.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        _commands.append((function, name, panel))
        return function

    return declare


def group(name: str, text: str, *, panel: str) -> None:
    """Declare a group of commands, such as `smalti cache`."""
    _groups[name] = text, panel


def add_commands(app: typer.Typer) -> None:
    """Add all commands that the imported modules have declared."""
    apps = {"": app}
    for name, (text, heading) in _groups.items():
        apps[name] = make_app(help=text)
        app.add_typer(apps[name], name=name, rich_help_panel=heading)
    for function, name, panel in _commands:
        add_command(apps[name.rpartition(" ")[0]], function, name=name, panel=panel)


def add_command(app: typer.Typer, function: Callable[..., Any], *, name: str, panel: str | None) -> None:
    """Add a command to an app or group, as `command` declares it."""
    # \b keeps the lines of a paragraph in plain help; rich keeps them by itself.
    is_rich = app.rich_markup_mode == "rich"
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
    lines = [f"  {line.strip()}" for line in examples.splitlines()]
    epilog = "\n".join(["Examples:", *lines]) if lines else ""  # `python -OO` has no docstrings
    text = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    app.command(
        name.rpartition(" ")[2],
        cls=Command,
        help=text.replace("[", r"\[") if is_rich else text,
        epilog=epilog.replace("[", r"\[") if is_rich or not epilog else f"\b\n{epilog}",
        rich_help_panel=panel,
    )(_with_groups(function))


def _without_bool(parameters: list[Any]) -> list[Any]:
    """Return the parameters; the help shows no type for flags, which take no value."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


def _with_groups(function: Callable[..., Any]) -> Callable[..., int]:
    """Return the function as typer shall see it: groups replaced by their fields, exceptions by exit statuses."""
    parameters = inspect.signature(function, eval_str=True).parameters
    groups: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        kind = parameter.annotation
        if not is_dataclass(kind):
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name], hints = kind, get_type_hints(kind, include_extras=True)
        for part in fields(kind):
            for option in hints[part.name].__metadata__:  # under the heading of the group, if it has one
                option.rich_help_panel = option.rich_help_panel or getattr(kind, "PANEL", None)
            flat.append(
                inspect.Parameter(
                    part.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if part.default is MISSING else part.default,
                    annotation=hints[part.name],
                )
            )
    options = {parameter.name: _option(parameter) for parameter in flat}

    def run(**given: Any) -> int:
        for name, value in given.items():  # of NaN, no other check can be relied on
            if isinstance(value, int | float) and not -(1 << 63) <= value < 1 << 63:
                raise UsageFault(
                    f"{options.get(name) or name}: expected a number of at most 64 bits, and not infinite, found "
                    f"{value!s:.40}"
                )
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        return run_command(lambda: function(**given, **made), options)

    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in flat}
    return run


def _option(parameter: inspect.Parameter) -> str:
    """Return the name of an option on the command line; empty for an argument.

    A flag without a name is given that of its parameter: typer would add its opposite, with the prefix `--no-`.
    """
    for info in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(info, typer.models.OptionInfo):
            names = (info.default, *(info.param_decls or ()))
            named = next((name for name in names if isinstance(name, str) and name.startswith("--")), None)
            if named is None:
                named = f"--{parameter.name.replace('_', '-')}"
                info.default = named if parameter.annotation.__origin__ is bool else info.default
            return named
    return ""
