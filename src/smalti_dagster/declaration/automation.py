"""The sections of a declaration about automation: schedule, sensors, and the channels of failure reports."""

from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import Field, model_validator


class Watch(dg.Model, dg.Resolvable):
    """Options of the sensor that re-shards a changed source."""

    quiet_seconds: int = Field(default=60, ge=0, description="Time for which the source must not have changed.")
    interval_seconds: int = Field(default=30, ge=1, description="Time between two looks at the source.")
    listing: Literal["full", "paged"] = Field(
        default="full",
        description="paged: each look lists a part of a folder on S3; needed from some 100,000 files on.",
    )
    file: str | None = Field(
        default=None,
        description="Name below the folder, or beside the manifest, of a file that is looked at in place of a listing: "
        "_SUCCESS, or the manifest itself.",
    )
    queue: str | None = Field(
        default=None, description="Address of an SQS queue with the bucket's events, in place of a listing."
    )

    @model_validator(mode="after")
    def _has_one_way(self) -> "Watch":
        given = ["listing: paged"] if self.listing == "paged" else []
        given += [name for name in ("file", "queue") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"give one of `listing: paged`, `file` and `queue` in `watch`, found {' and '.join(given)}"
            )
        return self

    @property
    def is_full(self) -> bool:
        """True if each look lists the whole source."""
        return self.listing == "full" and not self.file and not self.queue


class Notify(dg.Model, dg.Resolvable):
    """Channels that failures of this data set are reported to, beside those of the deployment."""

    webhook: str = Field(default="", description="URL that takes JSON; ${NAME} of a variable that holds it.")
    slack: str = Field(default="", description="Incoming webhook of Slack; ${NAME} of a variable that holds it.")
    email: list[str] = Field(default=[], description="Mailboxes; the deployment has the mail server.")
    error_texts: bool = Field(
        default=False, description="Send the texts of all errors, also of those that may hold values of rows."
    )

    @model_validator(mode="after")
    def _has_a_channel(self) -> "Notify":
        if not (self.webhook or self.slack or self.email):
            raise ValueError("give `webhook`, `slack` or `email` in `notify`, or leave it out")
        return self


class Freshness(dg.Model, dg.Resolvable):
    """The time after which the shards are overdue, if no run has made them or found them unchanged."""

    fail_hours: float | None = Field(
        default=None,
        gt=0,
        description="Hours until they are overdue; by default twice the longest time between two ticks of `reshard`.",
    )
    warn_hours: float | None = Field(default=None, gt=0, description="Hours until there is a warning; by default none.")

    @model_validator(mode="after")
    def _warns_before(self) -> "Freshness":
        if self.fail_hours is not None and self.warn_hours is not None and self.warn_hours >= self.fail_hours:
            raise ValueError(f"`warn_hours` {self.warn_hours:g} must be less than `fail_hours` {self.fail_hours:g}")
        return self


def cron_ticks(cron: str, timezone: str) -> dg.TimeWindowPartitionsDefinition:
    """Return the ticks of a cron expression as windows, each of which lasts from one tick to the next.

    Raises:
        ValueError: it is no cron expression.
    """
    try:
        return dg.TimeWindowPartitionsDefinition(
            start=datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")), fmt="%Y-%m-%d", cron_schedule=cron, timezone=timezone
        )
    except dg.DagsterInvalidDefinitionError as error:
        raise ValueError(f"`reshard` must be a cron expression such as '0 3 * * *', found {cron!r}") from error


class Automation(dg.Model, dg.Resolvable):
    """Schedule and sensors; everything is off until it is switched on in the UI."""

    reshard: str | None = Field(default="0 3 * * *", description="Cron expression, or null for no schedule.")
    timezone: str = "UTC"
    watch: Watch | None = Field(
        default=Watch(),
        description="Null for no sensor; for images, tables given by address, and rows with `source.version`.",
    )
    train_on_new_version: bool = True
    freshness: Freshness | None = Field(
        default=Freshness(), description="Freshness of the shards, which is shown and stops nothing; null for none."
    )
    notify: Notify | None = Field(default=None, description="By default failures go to the deployment's channels.")
    condition: Literal["eager", "on_missing", "on_cron"] | None = Field(
        default=None,
        description="Dagster's declarative automation in place of schedule and requests of sensors; on_cron at the "
        "times of `reshard`.",
    )

    @model_validator(mode="after")
    def _has_times(self) -> "Automation":
        if self.reshard is not None:
            cron_ticks(self.reshard, self.timezone)
        if self.condition == "on_cron" and self.reshard is None:
            raise ValueError("`condition: on_cron` needs `reshard`, the cron expression")
        if self.watch is not None and self.watch.queue and (self.reshard is None or self.condition is not None):
            raise ValueError(
                "`watch.queue` needs the schedule `reshard`, which finds changes whose message was lost, "
                "and no `condition`"
            )
        return self
