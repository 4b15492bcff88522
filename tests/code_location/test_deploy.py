"""The settings of Dagster instances that are shipped below deploy/; on a real PostgreSQL in tests/nightly."""

import json
import re
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config

from pipelines.home import REPOSITORY, prepare_home

DEPLOY = REPOSITORY / "deploy"
BY_VARIABLE = {
    "scheme": "postgresql+psycopg2",
    "hostname": {"env": "DAGSTER_PG_HOST"},
    "port": {"env": "DAGSTER_PG_PORT"},
    "username": {"env": "DAGSTER_PG_USERNAME"},
    "password": {"env": "DAGSTER_PG_PASSWORD"},
    "db_name": {"env": "DAGSTER_PG_DB"},
}


def settings(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / kind / "dagster.yaml").read_text())
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_shipped_settings_pass_dagster_s_schema(kind: str) -> None:
    config, custom = dagster_instance_config(str(DEPLOY / kind))
    assert config["telemetry"] == {"enabled": False}
    assert custom is None


def test_an_instance_for_one_machine_has_the_limits_and_waits_for_a_code_server_that_starts_again(
    tmp_path: Path,
) -> None:
    prepare_home(tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        limits = instance.get_concurrency_config()
        queue = limits.run_queue_config
        assert queue is not None
        assert (queue.max_concurrent_runs, limits.pool_config.default_pool_limit) == (4, 1)
        assert queue.max_user_code_failure_retries * queue.user_code_failure_retry_delay == 60


def test_a_misspelt_setting_would_not_pass(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({**settings("postgres"), "run_retry": {}}))
    with pytest.raises(dg.DagsterInvalidConfigError, match="run_retry"):
        dagster_instance_config(str(tmp_path))


def test_the_place_and_login_of_postgresql_are_given_by_variables() -> None:
    assert settings("postgres")["storage"] == {"postgres": {"postgres_db": BY_VARIABLE}}


def test_runs_are_limited_monitored_and_retried_alike_on_both() -> None:
    one, other = settings("sqlite"), settings("postgres")
    for section in ("concurrency", "run_queue", "run_monitoring", "run_retries"):
        assert one[section] == other[section]


def test_a_new_home_gets_the_settings_for_one_machine(tmp_path: Path) -> None:
    prepare_home(tmp_path)
    assert yaml.safe_load((tmp_path / "dagster.yaml").read_text()) == settings("sqlite")


COMPOSE_SCHEMA = Path(__file__).parent / "compose-spec.json"
"""compose-spec's own schema, as check-jsonschema 0.39.0 vendors it."""


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    return found


def helm() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
    return found


def test_every_file_of_settings_is_yaml() -> None:
    files = sorted(DEPLOY.rglob("*.yaml"))
    assert [str(file.relative_to(DEPLOY)) for file in files] == [
        "docker/compose.yaml",
        "docker/workspace.yaml",
        "kubernetes/values.yaml",
        "postgres/dagster.yaml",
        "sqlite/dagster.yaml",
        "systemd/workspace.yaml",
    ]
    assert all(isinstance(yaml.safe_load(file.read_text()), dict) for file in files)


def test_the_compose_file_passes_the_schema_of_the_compose_specification() -> None:
    schema = jsonschema.Draft202012Validator(json.loads(COMPOSE_SCHEMA.read_text()))
    assert list(schema.iter_errors(compose())) == []
    broken = compose()
    broken["services"]["code"]["restarts"] = "always"
    assert [error.validator for error in schema.iter_errors(broken)] == ["unevaluatedProperties"]


def test_each_service_is_looked_after_and_starts_again() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "code", "daemon", "webserver"}
    for name, service in services.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped"
    for name in ("daemon", "webserver"):
        assert services[name]["depends_on"] == {part: {"condition": "service_healthy"} for part in ("postgres", "code")}


def test_no_secret_stands_in_the_compose_file_and_every_variable_is_in_the_example() -> None:
    text = (DEPLOY / "docker" / "compose.yaml").read_text()
    example = (DEPLOY / "docker" / "env.example").read_text()
    for service in compose()["services"].values():
        for name, value in service["environment"].items():
            if any(word in name for word in ("PASSWORD", "KEY", "SECRET", "TOKEN")):
                assert str(value).startswith("${"), name
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == {"DAGSTER_PG_PASSWORD", "SMALTI_ROOT"}
    assert required <= set(re.findall(r"^(\w+)=", example, re.MULTILINE))


def test_the_code_server_which_evaluates_sensors_has_every_variable_that_is_filled_in() -> None:
    """Also those of notifications and of stores other than S3, none of which the compose file names."""
    code = compose()["services"]["code"]
    assert code["env_file"] == ".env"
    assert code["environment"].keys() - {"SMALTI_STAGE", "SMALTI_ROOT"} == compose()["x-dagster"]["environment"].keys()


def test_all_containers_have_the_settings_and_variables_of_postgresql() -> None:
    services = compose()["services"]
    wanted = {each["env"] for each in BY_VARIABLE.values() if isinstance(each, dict)}
    for name in ("code", "daemon", "webserver"):
        assert wanted <= services[name]["environment"].keys()
        assert "../postgres/dagster.yaml:/opt/dagster/dagster.yaml:ro" in services[name]["volumes"]
        assert services[name]["image"] == "smalti-dagster"


def test_daemon_and_webserver_ask_the_code_server_where_the_image_starts_it() -> None:
    [location] = yaml.safe_load((DEPLOY / "docker" / "workspace.yaml").read_text())["load_from"]
    assert location == {"grpc_server": {"host": "code", "port": 4000, "location_name": "smalti"}}
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    [command] = re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)
    served = "dagster api grpc -h 0.0.0.0 -p 4000 -m pipelines.definitions -a defs"
    assert " ".join(json.loads(command)) == served


def test_what_the_image_copies_is_there() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    assert [path for paths in copied for path in paths if not (REPOSITORY / path).exists()] == []
    extras = set(re.findall(r"^ARG EXTRAS=(.*)$", dockerfile, re.MULTILINE)[0].split(","))
    assert extras <= set(re.findall(r"^(\w+) = \[", (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE))


def snake(value: Any) -> Any:
    """The names that the chart gives to Dagster's settings."""
    if not isinstance(value, dict):
        return value
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): snake(each) for key, each in value.items()}


def test_the_values_for_kubernetes_make_settings_that_dagster_accepts(tmp_path: Path) -> None:
    values = helm()
    daemon = values["dagsterDaemon"]
    retention = {name: snake(values["retention"][name]) for name in ("schedule", "sensor")}
    made = {
        **values["additionalInstanceConfig"],
        "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator"},
        "run_monitoring": snake(daemon["runMonitoring"]),
        "run_retries": snake(daemon["runRetries"]),
        "retention": retention,
        "telemetry": values["telemetry"],
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(made))
    dagster_instance_config(str(tmp_path))
    postgres = settings("postgres")
    assert made["concurrency"] == postgres["concurrency"]
    assert made["run_retries"] == postgres["run_retries"]
    assert made["retention"] == postgres["retention"]


def test_the_values_for_kubernetes_load_the_same_definitions_as_the_image() -> None:
    values = helm()
    [deployment] = values["dagster-user-deployments"]["deployments"]
    assert deployment["dagsterApiGrpcArgs"] == ["-m", "pipelines.definitions", "-a", "defs"]
    assert values["runLauncher"]["type"] == "K8sRunLauncher"
    assert deployment["includeConfigInLaunchedRuns"] == {"enabled": True}
