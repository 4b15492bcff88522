"""Configuration of an asset with the declaration's values as its defaults, so that the Launchpad shows them."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import dagster as dg
from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from smalti.redaction import redact_address
from smalti.torch.train.config import RunConfig, TrainConfig, place_of_option

C = TypeVar("C", bound=dg.Config)

_LIMITS = ("ge", "gt", "le", "lt")
OVERRIDDEN = "overridden_in_this_run"
"""In the metadata of a materialisation: the fields in which the run's configuration differs from the declaration."""


def with_defaults(base: type[C], **values: Any) -> type[C]:
    """Return a subclass of a configuration with these defaults.

    Raises:
        ValueError: a name that the configuration does not have, or a value that it does not accept.
    """
    unknown = sorted(values.keys() - base.model_fields.keys())
    if unknown:
        known, place = ", ".join(base.model_fields), place_of_option(unknown[0])
        raise ValueError(f"{base.__name__} has no field {unknown[0]!r}; it has {known}.{place}")
    base(**values)
    fields: dict[str, Any] = {
        name: (
            # A configuration in this one has defaults of its own, for what a run leaves out.
            type(value) if isinstance(value, dg.Config) else base.model_fields[name].annotation,
            FieldInfo.merge_field_infos(base.model_fields[name], default=value),
        )
        for name, value in values.items()
    }
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def of_training(name: str, **changes: Any) -> Any:
    """Return a field of `smalti.torch.train.TrainConfig` for a configuration: with its default, limits and description.

    Args:
        name: Of the field.
        changes: Arguments of pydantic's `Field` in place of those.
    """
    kind: Any = RunConfig if name in RunConfig.__annotations__ else TrainConfig  # the one with the description
    return _field(kind, name, **changes)


def _field(kind: Any, name: str, **changes: Any) -> Any:
    field = kind.__pydantic_fields__[name]
    limits = {kind: getattr(limit, kind) for limit in field.metadata for kind in _LIMITS if hasattr(limit, kind)}
    first = (field.description or "").partition("\n\n")[0].replace("\n", " ")
    default = field.get_default(call_default_factory=True)
    default = list(default) if isinstance(default, tuple) else default
    return Field(**{"default": default, "description": first or None, **limits, **changes})


def config_like(kind: type, *names: str) -> Any:
    """Return a configuration of Dagster with some fields of one of the trainer's: types, defaults, limits and texts.

    Args:
        kind: the trainer's, such as `smalti.torch.train.TrainConfig`.
        names: of the fields.
    """
    hints = get_type_hints(kind)
    fields: Any = {name: (_type_in_dagster(hints[name]), _field(kind, name)) for name in names}
    return create_model(kind.__name__, __base__=dg.Config, **fields)


def _type_in_dagster(hint: Any) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        return list[_type_in_dagster(parts[0])]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return Union[tuple(map(_type_in_dagster, parts))]  # noqa: UP007 - of a tuple
    return dict[str, Any] if isinstance(origin, type) and issubclass(origin, Mapping) else hint


def overrides(config: dg.Config) -> dict[str, Any]:
    """Return metadata that shows which fields a run has overridden; empty if none."""
    fields = type(config).model_fields
    changed = {
        name: {"declared": _shown(field.default), "in this run": _shown(getattr(config, name))}
        for name, field in fields.items()
        if getattr(config, name) != field.default
    }
    return {OVERRIDDEN: dg.MetadataValue.json(changed)} if changed else {}


def _shown(value: Any) -> Any:
    """Return a value as JSON holds it, without secrets."""
    if isinstance(value, dg.Config):
        return {name: _shown(own) for name, own in value.model_dump().items()}
    value = getattr(value, "value", value)  # of an enum
    return redact_address(value) if isinstance(value, str) else value
