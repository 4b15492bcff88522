"""The settings of Dagster instances that are shipped below deploy/; on a real PostgreSQL in tests/nightly."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config

from pipelines.home import prepare_home
from pipelines.stages import REPOSITORY

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


def test_a_misspelt_setting_would_not_pass(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({**settings("postgres"), "run_retry": {}}))
    with pytest.raises(dg.DagsterInvalidConfigError, match="run_retry"):
        dagster_instance_config(str(tmp_path))


def test_the_place_and_login_of_postgresql_are_given_by_variables() -> None:
    assert settings("postgres")["storage"] == {"postgres": {"postgres_db": BY_VARIABLE}}


def test_runs_are_limited_monitored_and_retried_alike_on_both() -> None:
    one, other = settings("sqlite"), settings("postgres")
    for section in ("concurrency", "run_monitoring", "run_retries"):
        assert one[section] == other[section]


def test_a_new_home_gets_the_settings_for_one_machine(tmp_path: Path) -> None:
    prepare_home(tmp_path)
    assert yaml.safe_load((tmp_path / "dagster.yaml").read_text()) == settings("sqlite")
