"""The home of Dagster's own records: the folder `DAGSTER_HOME`, made ready here before Dagster first looks at it.

`python -m pipelines.home` does so before the UI starts.
"""

import os
import shutil
from pathlib import Path

from resources.stages import STAGES
from smalti_dagster.resources.deployment import detect_stage

REPOSITORY = Path(__file__).resolve().parents[1]
SETTINGS = REPOSITORY / "deploy" / "sqlite" / "dagster.yaml"


def detect_home() -> Path:
    """Return the folder that `DAGSTER_HOME` names, else that of the stage in the repository; set here, and ready."""
    stage = detect_stage(stages=STAGES)
    own = REPOSITORY / (".dagster" if stage == "local" else f".dagster-{stage}")
    home = Path(os.environ.get("DAGSTER_HOME") or own).absolute()
    prepare_home(home)
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def prepare_home(home: Path) -> None:
    """Make the folder, and give it the settings of `deploy/sqlite/dagster.yaml` unless it has its own."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        shutil.copyfile(SETTINGS, home / "dagster.yaml")


if __name__ == "__main__":
    detect_home()
