"""The choices of a run about a source of rows."""

import dagster as dg
from pydantic import Field

from smalti.redaction import redact
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.configuration import with_defaults
from smalti_dagster.declaration.data import FORMS, forms_of
from smalti_dagster.places import expand

_FORMS = forms_of("rows")


class RowsConfig(dg.Config):
    """The source of the rows."""

    form: str = Field(default="table", description=f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}.")
    source: str = Field(
        default="",
        description="; ".join(f"{name}: {FORMS[name].text}" for name in _FORMS) + ".",
    )

    @property
    def described(self) -> str:
        """Return the source as a text without secrets; equal for configurations that read the same place."""
        return f"{self.form} {redact(expand(self.source))}"


def rows_config(declared: Declaration) -> type[RowsConfig]:
    """Return the configuration with the values of a declaration."""
    return with_defaults(RowsConfig, form=declared.source.form, source=declared.source.text)
