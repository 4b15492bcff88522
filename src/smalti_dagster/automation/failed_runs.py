"""The message about a run that failed: which data set and step, why, and what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from smalti import errors
from smalti.redaction import redact
from smalti.storage.redact import detect_secrets
from smalti_dagster.lineage import DATA_SET_TAG
from smalti_dagster.resources.notifications import Message

_ERRORS = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
_OF_DEPLOYMENT = (errors.StoreError, errors.CatalogError, errors.WorldMismatch, errors.MissingDependency)
_SPOKEN = {*(name for name, each in _ERRORS.items() if issubclass(each, errors.SmaltiError)), "Failure"}
"""Names of the errors whose text says what to do."""
_SAFE = {*(name for name, each in _ERRORS.items() if issubclass(each, _OF_DEPLOYMENT)), "Failure"}
"""Names of those whose text never holds values of rows, or texts of functions of the user."""
_LONGEST = 700  # characters of a reason

_KINDS = {
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
}


@dataclass(frozen=True)
class _Reason:
    text: str
    what_to_do: str
    step: str = ""
    check: str = ""


def data_set_of(run: dg.DagsterRun) -> str:
    """Return the data set of a run; empty if it has none. One that a person launched gets its tag from its steps."""
    if name := run.tags.get(DATA_SET_TAG):
        return name
    keys = [*(run.asset_selection or ()), *(each.asset_key for each in run.asset_check_selection or ())]
    return min((each.path[0] for each in keys), default="")


def describe_run(instance: dg.DagsterInstance, run: dg.DagsterRun, link: str, *, has_texts: bool) -> Message:
    """Return the message about a run that failed and is not retried.

    Args:
        instance: Knows the run.
        run: That failed.
        link: To its page.
        has_texts: Whether the message has the texts of all errors, also of those that may hold values of rows.
    """
    reason = _find_reason(instance, run, has_texts=has_texts)
    name = data_set_of(run) or reason.check.partition("/")[0]
    where = f" in step {reason.step}" if reason.step else ""
    what = f"check {reason.check}" if reason.check else run.job_name.removeprefix("__")
    return Message(
        title=f"{name or 'Dagster'}: {what} failed",
        text=f"Run {run.run_id} of {run.job_name} failed{where}.\n{reason.text}\n{reason.what_to_do}",
        link=link,
        facts={
            "kind": "check" if reason.check else "run",
            "data_set": name,
            "job": run.job_name,
            "run": run.run_id,
            "step": reason.step,
            "check": reason.check,
            "error": reason.text,
            "what_to_do": reason.what_to_do,
        },
    )


def first_line(error: SerializableErrorInfo, *, has_texts: bool) -> str:
    """Return the first line of an error, without secrets: of the deepest one that says what to do, else of the cause.

    A class is named without its modules. Without `has_texts`, an error that may hold values of rows is named by its
    class alone.
    """
    chain = list(_chain(error))
    spoken = [each for each in chain if each.cls_name in _SPOKEN]
    shown = (spoken or chain)[-1]
    if not has_texts and shown.cls_name not in _SAFE:
        return f"{shown.cls_name}; its text, which may hold values of rows, is in the UI"
    lines = shown.message.strip().splitlines() or ["no message"]
    kind, mark, text = lines[0].partition(": ")
    is_class = bool(mark) and " " not in kind
    return _clean(f"{kind.rpartition('.')[2]}: {text}" if is_class else lines[0])


def _find_reason(instance: dg.DagsterInstance, run: dg.DagsterRun, *, has_texts: bool) -> _Reason:
    """Return why a run failed: the blocking check, the first step that failed, or what ended the run."""
    events = [each.dagster_event for each in instance.all_logs(run.run_id, of_type=_KINDS) if each.dagster_event]
    failed = [each for each in events if each.event_type is dg.DagsterEventType.STEP_FAILURE]
    step = failed[0].step_key or "" if failed else ""
    for event in events:
        if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check: Any = event.asset_check_evaluation_data
            if check.blocking and not check.passed and check.severity is dg.AssetCheckSeverity.ERROR:
                text = check.description or "The blocking check did not pass; its metadata says why."
                name = f"{check.asset_key.to_user_string()}:{check.check_name}"
                todo = "The stages after it were not made. Mend the cause, then run the job again."
                return _Reason(_clean(text), todo, event.step_key or "", name)
    if failed:
        return _Reason(_text_of(failed, has_texts=has_texts), _advice(step), step)
    ended = [each for each in events if each.event_type is dg.DagsterEventType.RUN_FAILURE]
    text = _text_of(ended, has_texts=has_texts) if ended else "No event says why."
    return _Reason(text, "Look at the run's events, then re-execute it.")


def _advice(step: str) -> str:
    if step.endswith("__model"):
        return "Mend the cause, then re-execute the run: it goes on from its newest checkpoint."
    if step.endswith("__data"):
        return "Mend the cause, then re-execute the run from failure: what it has made is taken over."
    return "Mend the cause, then re-execute the run."


def _text_of(events: Sequence[dg.DagsterEvent], *, has_texts: bool) -> str:
    """Return the first line of the error of the first event."""
    data: Any = events[0].event_specific_data
    error = getattr(data, "error", None)
    return first_line(error, has_texts=has_texts) if error is not None else _clean(events[0].message or "no message")


def _chain(error: SerializableErrorInfo) -> Iterator[SerializableErrorInfo]:
    """Yield an error and what caused it, outermost first."""
    link: SerializableErrorInfo | None = error
    while link is not None:
        yield link
        link = link.cause


def _clean(text: str) -> str:
    text = redact(" ".join(text.split()), detect_secrets())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
