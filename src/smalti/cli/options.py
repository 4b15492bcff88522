"""Options that commands share: the address, the version, the split, JSON, and the settings of the store."""

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from smalti.cli.faults import UsageFault

if TYPE_CHECKING:
    from smalti.catalog import Manifest
    from smalti.storage import Store


def argument(metavar: str, text: str) -> Any:
    """Return the description of an argument: its name and its text in the help."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def option(metavar: str, text: str, *names: str, **settings: Any) -> Any:
    """Return the description of an option with a value: the name of the value, and the text in the help.

    Without `names`, it has the name of the parameter.
    """
    return typer.Option(*names, metavar=metavar, help=text, **settings)


def flag(text: str, *names: str, **settings: Any) -> Any:
    """Return the description of an option without a value, as `option` does; there is none with the prefix `--no-`."""
    return typer.Option(*names, help=text, **settings)


Url = Annotated[str, argument("URL", "URL or folder of the shard set.")]
_ALWAYS_TEXT = re.compile(
    r"key|secret|token|password|passphrase|user(name)?|account_(name|key)|external_id|(?!bucket_).*_(key|secret|token)"
)
_NAMED = {"endpoint_url": "--endpoint-url", "profile": "--profile"}
"""By storage option: the option of the commands, for the schemes that know it (`smalti.storage.schemes`)."""


@dataclass(frozen=True)
class Output:
    """The form of a command's output."""

    as_json: Annotated[bool, flag("Print one JSON document.", "--json", rich_help_panel="Options")] = False


@dataclass(frozen=True)
class VersionChoice:
    """A version: by its number, by a tag, or the newest."""

    at: Annotated[int | None, option("N", "Version (default: the newest).", min=1)] = None
    tag: Annotated[str | None, option("NAME", "The version with this tag.")] = None

    def __post_init__(self) -> None:
        if self.at is not None and self.tag is not None:
            raise UsageFault("--at and --tag exclude each other; give one of them")

    def open(self, store: "Store") -> "Manifest":
        """Open the version."""
        from smalti.catalog.opening import WantedVersion, open_version

        return open_version(store, WantedVersion(self.at, self.tag))


@dataclass(frozen=True)
class SplitChoice(VersionChoice):
    """A version, and one of its splits."""

    split: Annotated[str | None, option("NAME", "Split to read (default: all).")] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by which the library takes them."""
        return {"version": self.at, "tag": self.tag, "split": self.split}


@dataclass(frozen=True)
class CommonOptions(Output):
    """The form of the output, and settings of stores that are not the environment's."""

    PANEL: ClassVar[str] = "Store"

    storage_option: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "An option of the store's client, such as anon=true; may be repeated. docs/storage.md lists them.",
        ),
    ] = field(default=None, repr=False)
    endpoint_url: Annotated[str | None, option("URL", "Server of a store that is not the cloud's.")] = None
    profile: Annotated[str | None, option("NAME", "Profile of ~/.aws/config with the credentials.")] = None

    def open(self, url: str) -> "Store":
        """Return the store at an address, opened with these settings.

        Raises:
            UsageFault: a setting has no meaning for this kind of store.
        """
        from smalti.storage import open_store

        return open_store(url, self.for_address(url) or None)

    def for_address(self, url: str) -> dict[str, Any]:
        """Return the options of the store's client; none for a path, which has no client.

        Raises:
            UsageFault: a setting has no meaning for this kind of store.
        """
        from smalti.storage.opening import service_of
        from smalti.storage.schemes import SCHEMES

        service = service_of(url)
        options = dict(parse_storage_option(text) for text in self.storage_option or ())
        for name, long_name in _NAMED.items():
            value = getattr(self, name)
            if value is None or not service:
                continue
            services = [each.name for each in SCHEMES if name in (*each.named_options, *each.usual_options)]
            if service not in services:
                known = ", ".join(f"{each}://" for each in services)
                raise UsageFault(f"{long_name} is for {known}; for {service}:// use --storage-option")
            options[name] = value
        return options if service else {}


def parse_storage_option(text: str, option: str = "--storage-option") -> tuple[str, Any]:
    """Return the name and the value of `key=value`.

    true, false, null, numbers, and lists and objects in JSON have their types; anything else is text, and so are the
    values of options that hold credentials. JSON's quotes make text of a number: `x='"1"'`.

    Raises:
        UsageFault: it has no name or no "=", or is almost JSON.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageFault(f"{option}: expected KEY=VALUE, such as anon=true; one is given without a key or `=`")
    if _ALWAYS_TEXT.fullmatch(name):
        return name, value
    lowered = value.lower()
    if lowered in {"true", "false", "null", "none"}:
        return name, {"true": True, "false": False}.get(lowered)
    try:
        return name, json.loads(value)
    except ValueError as fault:
        if value.startswith(("{", "[", '"')):
            raise UsageFault(f"{option} {name}: not valid JSON: {fault}") from None
        return name, value
