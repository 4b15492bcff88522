"""Configuration of an asset with the declaration's values as its defaults, so that the Launchpad shows them."""

from typing import Any, TypeVar

import dagster as dg
from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from smalti.storage.redact import redact_address
from smalti.torch.train.config import RunConfig, TrainConfig

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
        raise ValueError(f"{base.__name__} has no field {unknown[0]!r}; it has {', '.join(base.model_fields)}")
    base(**values)
    fields: dict[str, Any] = {
        name: (base.model_fields[name].annotation, FieldInfo.merge_field_infos(base.model_fields[name], default=value))
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
    field = kind.__pydantic_fields__[name]
    limits = {kind: getattr(limit, kind) for limit in field.metadata for kind in _LIMITS if hasattr(limit, kind)}
    first = (field.description or "").partition("\n\n")[0].replace("\n", " ")
    return Field(**{"default": field.default, "description": first or None, **limits, **changes})


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
    value = getattr(value, "value", value)  # of an enum
    return redact_address(value) if isinstance(value, str) else value
