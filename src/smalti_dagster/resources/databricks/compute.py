"""The resource that runs functions as jobs on Databricks: with the Spark of a cluster, and the code of this process."""

import re
import secrets
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from smalti.redaction import redact
from smalti.storage.databricks.api import FilesApi
from smalti.storage.databricks.workspace import Workspace
from smalti.storage.redact import detect_secrets
from smalti.storage.schemes import secret_variables
from smalti_dagster.resources.databricks.code import DISTRIBUTION, ENTRY_POINT, CodeWheel, build_wheel
from smalti_dagster.resources.databricks.jobs import Jobs, clean
from smalti_dagster.resources.databricks.messages import SessionFolder, remove_left
from smalti_dagster.resources.databricks.open_job import Limits, OpenJob, end_earlier
from smalti_dagster.resources.spark import ComputeResource

REFERENCE = re.compile(r"\{\{secrets/[^/{}]+/[^/{}]+\}\}")
"""The value of a variable that is a secret of the workspace."""


class DatabricksResource(ComputeResource):
    """Databricks as a place to run functions: those of a step as one job, whose cluster ends with it.

    The packages that `packages` lists (by default `smalti` and `smalti_dagster`; add those of your functions) are
    packed as a wheel, put into `<volume>/code`, and installed by the cluster with the requirements of the library and
    Dagster. `libraries` names further ones, such as s3fs. `cluster` is `new_cluster` of the Jobs API, `cluster_id` an
    existing cluster; neither means serverless compute. `environment` has the variables of the cluster: one that is
    known to be secret and holds anything but a reference to a secret scope is refused.

    Cancelling the Dagster run, or a failure of the step, cancels the Databricks run. The job of a killed step ends
    after `lease_seconds` (10 minutes), and a retry cancels it first. `start_seconds` limits the wait for a cluster,
    `run_seconds` the whole run. The workspace may be unreachable for ten minutes during a run.

    Examples:
        A function in the module `pipelines.defs.trees.stages`, and an asset that runs it on a cluster:

        ```python
        def count(report, table):
            from pyspark.sql import SparkSession

            rows = SparkSession.builder.getOrCreate().table(table).count()
            report(f"{rows} rows")  # a line of the run's log in Dagster
            return {"rows": rows}  # what JSON holds


        @dg.asset
        def counted(context: dg.AssetExecutionContext, databricks: DatabricksResource):
            arguments = {"table": "main.trees.images"}
            result, metadata = databricks.run(context, "pipelines.defs.trees.stages:count", arguments)
            return dg.MaterializeResult(metadata={"rows": result["rows"], **metadata})


        databricks = DatabricksResource(
            volume="/Volumes/main/trees/work",
            host=dg.EnvVar("DATABRICKS_HOST"),
            token=dg.EnvVar("DATABRICKS_TOKEN"),
            cluster={"spark_version": "17.3.x-scala2.13", "node_type_id": "i3.xlarge", "num_workers": 4},
            environment={"AWS_SECRET_ACCESS_KEY": "{{secrets/trees/AWS_SECRET_ACCESS_KEY}}"},
        )
        ```
    """

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
        default=["smalti", "smalti_dagster"],
        description="Packages that are sent to the cluster; add those of functions that declarations name.",
    )
    start_seconds: int = Field(default=1800, gt=0, description="How long a run may wait for its cluster.")
    run_seconds: int = Field(default=86400, gt=0, description="How long a run may take, waiting included.")
    lease_seconds: int = Field(default=600, gt=0, description="After which a job ends whose Dagster step has died.")
    poll_seconds: float = Field(default=5.0, gt=0, description="Between two looks at the run and its messages.")

    _job: OpenJob | None = PrivateAttr(default=None)

    def run(
        self, context: dg.AssetExecutionContext, function: str, arguments: Mapping[str, Any], *, is_last: bool = True
    ) -> tuple[Any, dict[str, Any]]:
        """Run `function(report, **arguments)` as a job, and return its result and metadata about the run.

        Blocks until the function has returned, and after the last one until the run is over; when this step is
        cancelled or fails, the run is cancelled. Its log lines become those of the step.

        Args:
            context: Of the step.
            function: `module:function` in one of the packages; `report` takes a line for the log.
            arguments: What JSON holds; no secrets.
            is_last: False keeps the cluster for the next function of this step, or until the step ends.

        Raises:
            dg.Failure: the run was refused, got no cluster, failed, was cancelled there or sent no result.
            StoreError: the function failed by a fault of a storage that is likely to pass.
        """
        if self._job is None or not self._job.is_of(context):
            self._job = self._start(context)
        try:
            result = self._job.call(function, arguments, is_last=is_last)
        except BaseException:
            self._job = None  # it is cancelled
            raise
        if is_last:
            self._job = None
        self.refuse_if_over()
        return result

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """End the job that waits for another function: the step is over."""
        super().teardown_after_execution(context)
        self._end()

    def _end(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.end()

    def _start(self, context: dg.AssetExecutionContext) -> OpenJob:
        """Submit a job for the functions of a step."""
        self._refuse_secrets()
        self._end()  # of an earlier attempt in this process
        given = (("host", self.host), ("token", self.token))
        workspace = Workspace({name: value for name, value in given if value is not None})
        files, jobs = FilesApi(workspace), Jobs(workspace)
        end_earlier(context, jobs, self.poll_seconds)
        sessions = f"{self.volume.rstrip('/')}/sessions"
        remove_left(files, sessions, context.instance)
        code = self._send_code(context, files)
        name = f"{context.run.run_id}-{secrets.token_hex(4)}"
        job = OpenJob(
            context,
            jobs,
            SessionFolder(files, f"{sessions}/{name}"),
            Limits(self.start_seconds, self.lease_seconds, self.poll_seconds),
            {"environment": {} if self.cluster else self.environment, "code": code.version},
        )
        job.start(lambda parameters: self._settings(code, parameters, context), name)
        return job

    def _refuse_secrets(self) -> None:
        """Return only if no variable for the cluster holds a secret.

        Raises:
            dg.Failure: one does; it would be stored with the job, where others can read it.
        """
        known = detect_secrets()
        for name, value in sorted(self.environment.items()):
            is_secret = name in secret_variables() or redact(value, known) != value
            if is_secret and not REFERENCE.fullmatch(value):
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
