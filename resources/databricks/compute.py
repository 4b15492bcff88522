"""The resource that runs functions as jobs on Databricks: with the Spark of a cluster, and the code of this process."""

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from resources.databricks.code import DISTRIBUTION, ENTRY_POINT, CodeWheel, build_wheel
from resources.databricks.jobs import JobRun, Jobs, clean, describe_end
from resources.databricks.messages import (
    SessionFolder,
    VolumeContextInjector,
    VolumeMessageReader,
    metadata_of,
    outcome_of,
)
from resources.lifetime import RunBoundResource
from resources.signals import held_signals
from smalti.storage.databricks.api import FilesApi
from smalti.storage.databricks.workspace import Workspace
from smalti.storage.redact import redact
from smalti.storage.schemes import secret_variables

PAGE = "page of the run on Databricks"
"""In the metadata of what was made there."""

_REFERENCE = re.compile(r"\{\{secrets/[^/{}]+/[^/{}]+\}\}")
_OUTAGE_SECONDS = 600.0  # for which the workspace may not answer about a run
_CANCEL_SECONDS = 60.0  # that a cancelled run has for its end
_RENEW_SECONDS = 20.0  # between two renewals of the lease


class DatabricksResource(RunBoundResource):
    """Databricks as a place to run functions: each as a job, whose cluster ends with it."""

    volume: str = Field(description="/Volumes/catalog/schema/volume/folder: for code and messages, mounted there.")
    host: str | None = Field(default=None, description="Workspace URL; the SDK's own chain when empty.")
    token: str | None = Field(default=None, description="The SDK's own chain when empty.")
    cluster: dict[str, Any] = Field(
        default={}, description="`new_cluster` of the Jobs API: spark_version, node_type_id, num_workers and so on."
    )
    cluster_id: str | None = Field(default=None, description="A cluster that is there. Neither: serverless.")
    environment: dict[str, str] = Field(
        default={}, description="Variables for the cluster; secrets as {{secrets/scope/key}}."
    )
    libraries: list[str] = Field(default=[], description="Further requirements for pip, such as s3fs.")
    packages: list[str] = Field(
        default=["smalti", "assets", "resources", "pipelines"], description="Packages that are sent to the cluster."
    )
    start_seconds: int = Field(default=1800, gt=0, description="How long a run may wait for its cluster.")
    run_seconds: int = Field(default=86400, gt=0, description="How long a run may take, waiting included.")
    lease_seconds: int = Field(default=600, gt=0, description="After which a job ends whose Dagster step has died.")
    poll_seconds: float = Field(default=5.0, gt=0, description="Between two looks at the run and its messages.")

    def run(
        self, context: dg.AssetExecutionContext, function: str, arguments: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Run `function(report, **arguments)` as a job, and return its result and metadata about the run.

        Blocks until the run is over; when this step is cancelled or fails, the run is cancelled. Its log lines become
        those of the step.

        Args:
            context: Of the step.
            function: `module:function` in one of the packages; `report` takes a line for the log.
            arguments: What JSON holds; no secrets.

        Raises:
            dg.Failure: the run was refused, got no cluster, failed, was cancelled there or sent no result.
        """
        self._refuse_secrets()
        workspace = Workspace(
            {name: value for name, value in (("host", self.host), ("token", self.token)) if value is not None}
        )
        files, jobs = FilesApi(workspace), Jobs(workspace)
        code = self._send_code(context, files)
        name = f"{context.run.run_id}-{secrets.token_hex(4)}"
        folder = SessionFolder(files, f"{self.volume.rstrip('/')}/sessions/{name}")
        extras = {
            "function": function,
            "arguments": dict(arguments),
            "environment": {} if self.cluster else self.environment,
            "code": code.version,
            "lease_seconds": self.lease_seconds,
        }
        with folder.open():
            with dg.open_pipes_session(
                context.op_execution_context,  # of an asset's, Pipes asks for what Dagster has deprecated
                VolumeContextInjector(folder),
                VolumeMessageReader(folder, interval=self.poll_seconds),
                extras=extras,
            ) as session:
                settings = self._settings(code, session.get_bootstrap_cli_arguments(), context)
                run, has_started = self._follow(context, jobs, settings, name, folder)
            # The session is closed: all messages have been read.
            outcome = outcome_of(session.get_custom_messages())
        self.refuse_if_over()
        return _result(run, outcome, jobs, function, has_started=has_started), _metadata(run)

    def _refuse_secrets(self) -> None:
        """Return only if no variable for the cluster holds a secret.

        Raises:
            dg.Failure: one does; it would be stored with the job, where others can read it.
        """
        for name in sorted(secret_variables() & self.environment.keys()):
            if not _REFERENCE.fullmatch(self.environment[name]):
                raise dg.Failure(
                    f"the variable {name} for the cluster must be a reference to a secret of the workspace, "
                    "{{secrets/<scope>/<key>}}, not the secret",
                    allow_retries=False,
                )

    def _send_code(self, context: dg.AssetExecutionContext, files: FilesApi) -> CodeWheel:
        """Put the wheel of this code into the volume, unless it is there."""
        code = build_wheel(self.packages)
        path = self._wheel_path(code)
        try:
            try:
                found = files.stat(path)["size"]
            except FileNotFoundError:
                found = -1
            if found != len(code.contents):
                context.log.info("sending the code to %s", path)
                files.write(path, code.contents, overwrite=True)
        except OSError as error:
            raise dg.Failure(
                f"cannot write the code to the volume: {type(error).__name__}: {clean(str(error))}"
            ) from None
        return code

    def _wheel_path(self, code: CodeWheel) -> str:
        return f"{self.volume.rstrip('/')}/code/{code.version.partition('+')[2]}/{code.filename}"

    def _settings(
        self, code: CodeWheel, bootstrap: Mapping[str, str], context: dg.AssetExecutionContext
    ) -> dict[str, Any]:
        """Return the body of a request for a run."""
        parameters = [each for pair in bootstrap.items() for each in pair]
        wheel = self._wheel_path(code)
        task: dict[str, Any] = {
            "task_key": "stage",
            "python_wheel_task": {
                "package_name": DISTRIBUTION, "entry_point": ENTRY_POINT, "parameters": parameters
            },
        }  # fmt: skip
        run = {"run_name": f"smalti {context.run.run_id[:8]}", "timeout_seconds": self.run_seconds, "tasks": [task]}
        if not self.cluster and not self.cluster_id:
            spec = {"client": "3", "dependencies": [wheel, *self.libraries]}
            task["environment_key"] = "default"
            return {**run, "environments": [{"environment_key": "default", "spec": spec}]}
        task["libraries"] = [{"whl": wheel}, *({"pypi": {"package": each}} for each in self.libraries)]
        if self.cluster:
            variables = {**self.cluster.get("spark_env_vars", {}), **self.environment}
            task["new_cluster"] = {**self.cluster, "spark_env_vars": variables}
        else:
            task["existing_cluster_id"] = self.cluster_id
        return run

    def _follow(
        self,
        context: dg.AssetExecutionContext,
        jobs: Jobs,
        settings: Mapping[str, Any],
        token: str,
        folder: SessionFolder,
    ) -> tuple[JobRun, bool]:
        """Submit a run and wait for its end; return it, and whether it had a cluster."""
        try:
            # Interrupted here, nobody would know the number of the run that was started.
            with held_signals():
                number = jobs.submit(settings, token=token)
        except OSError as error:
            raise dg.Failure(
                f"Databricks did not accept the job: {type(error).__name__}: {clean(str(error))}", allow_retries=False
            ) from None
        try:
            return self._wait(context, jobs, number, folder)
        except BaseException:
            context.log.info("cancelling run %d on Databricks", number)
            _cancel(jobs, number, self.poll_seconds)
            raise

    def _wait(
        self, context: dg.AssetExecutionContext, jobs: Jobs, number: int, folder: SessionFolder
    ) -> tuple[JobRun, bool]:
        began = answered = renewed = time.monotonic()
        last, has_started = JobRun(number, ""), False
        while True:
            try:
                run = jobs.look(number)
            except OSError as error:
                if time.monotonic() - answered > _OUTAGE_SECONDS:
                    raise dg.Failure(f"Databricks does not answer about run {number}: {clean(str(error))}") from None
                context.log.warning("cannot ask about run %d: %s", number, clean(str(error)))
            else:
                answered = time.monotonic()
                if run.phase != last.phase:
                    context.log.info("run %d on Databricks is %s: %s", number, run.phase, run.page or run.message)
                last, has_started = run, has_started or not (run.is_waiting or run.is_over)
                if run.is_over:
                    return run, has_started
            if not has_started and time.monotonic() - began > self.start_seconds:
                raise dg.Failure(
                    f"run {number} on Databricks got no cluster within {self.start_seconds} s ({last.phase}: "
                    f"{last.message or 'no reason given'}); it is cancelled: {last.page}",
                    metadata=_metadata(last),
                )
            if time.monotonic() - renewed > min(_RENEW_SECONDS, self.lease_seconds / 5):
                with contextlib.suppress(OSError):  # one of many
                    folder.renew_lease()
                renewed = time.monotonic()
            time.sleep(self.poll_seconds)


def cluster_environment(environment: Mapping[str, str], scope: str | None) -> dict[str, str]:
    """Return variables for a cluster: secret ones as references to secrets of the same names in a scope.

    Raises:
        ValueError: a variable is secret, and there is no scope.
    """
    hidden = sorted(secret_variables() & environment.keys())
    if hidden and not scope:
        raise ValueError(
            f"{hidden[0]} is a secret, which the cluster gets from a secret scope of the workspace: put it there under "
            "this name, and name the scope"
        )
    return {name: f"{{{{secrets/{scope}/{name}}}}}" if name in hidden else value for name, value in environment.items()}


def read_cluster(text: str) -> dict[str, Any]:
    """Return the cluster that a setting describes: JSON, or the path of a file that holds it.

    Raises:
        ValueError: it is neither.
    """
    try:
        if not text.lstrip().startswith("{"):
            with open(os.path.expanduser(text), encoding="utf-8") as file:  # noqa: PTH111, PTH123
                text = file.read()
        found = json.loads(text)
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"the cluster must be JSON or a file with JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("the cluster must be an object: `new_cluster` of the Jobs API")  # noqa: TRY004
    return found


def _result(run: JobRun, outcome: Mapping[str, Any] | None, jobs: Jobs, function: str, *, has_started: bool) -> Any:
    """Return the result of a run that is over.

    Raises:
        dg.Failure: there is none; says why.
    """
    page = f" ({run.page})" if run.page else ""
    if outcome is not None and "error" in outcome and run.result != "CANCELED":
        error = outcome["error"]
        raise dg.Failure(
            f"{function} failed on Databricks: {error['type']}: {redact(error['message'])}{page}",
            metadata={**metadata_of(dict(outcome)), **_metadata(run)},
            allow_retries=bool(error.get("allow_retries", True)),
        )
    if not run.is_successful:
        text = jobs.error_text(run) if run.result == "FAILED" and has_started else ""
        said = f"\n{text}" if text else ""
        raise dg.Failure(
            f"run {run.number} {describe_end(run, has_started=has_started)}{page}{said}", metadata=_metadata(run)
        )
    if outcome is None:
        raise dg.Failure(
            f"run {run.number} succeeded on Databricks, but its result did not arrive: is the volume mounted and "
            f"writable on the cluster?{page}",
            metadata=_metadata(run),
        )
    return outcome["result"]


def _metadata(run: JobRun) -> dict[str, Any]:
    return {PAGE: dg.MetadataValue.url(run.page)} if run.page else {}


def _cancel(jobs: Jobs, number: int, pause: float) -> None:
    """Cancel a run and wait for its end, as far as possible: what raised before counts."""
    deadline = time.monotonic() + _CANCEL_SECONDS
    asked = False
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if not asked:
                jobs.cancel(number)
                asked = True
            if jobs.look(number).is_over:
                return
        time.sleep(min(pause, 1.0))
