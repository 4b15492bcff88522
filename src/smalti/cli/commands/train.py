"""`smalti train CONFIG.yaml`: a training run as its configuration says."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smalti.cli.options import Output, StoreOptions
from smalti.cli.output import duration, write, write_facts, write_json
from smalti.cli.registration import TRAINING, command

if TYPE_CHECKING:
    from smalti.torch.train import TrainConfig, TrainResult

_MASK = "***"


@command(
    "train",
    panel=TRAINING,
    examples=[
        "smalti train config.yaml",
        "smalti train config.yaml --set epochs=3 --set launcher=inline",
        "smalti train config.yaml --dry-run",
    ],
)
def train_model(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="YAML file; its keys are the fields of TrainConfig.", show_default=False),
    ],
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A value in place of the file's, such as epochs=3 or task_options.vocabulary=512; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration, and train nothing.")
    ] = False,
    stores: StoreOptions,
    output: Output,
) -> None:
    """Train a model as a configuration file says; a run that was stopped resumes from its newest checkpoint.

    The launcher in the configuration starts the processes.
    """
    from smalti.torch.train.config_file import read_config

    chosen = read_config(config, overrides or ())
    options = stores.for_address(chosen.data)
    if options:
        chosen = read_config(config, overrides or (), storage_options=options)
    if dry_run:
        _write_config(chosen, output)
        return
    from smalti.torch.train.threads import waiting_of_threads

    os.environ.update(waiting_of_threads(os.environ))  # the import of torch below reads them
    from smalti.torch.train import train

    result = train(chosen)
    if output.as_json:
        write_json(result.to_json())
    else:
        _write_result(result)


def _write_config(config: "TrainConfig", output: Output) -> None:
    from smalti.torch.train.config import TASKS

    facts = config.to_json()
    if config.task in TASKS:
        facts["task_options"] = {**TASKS[config.task].option_defaults(), **facts["task_options"]}
    for name in ("storage_options", "run_storage_options"):
        facts[name] = _masked(facts[name])
    if output.as_json:
        write_json(facts)
        return
    import yaml

    write(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True).rstrip("\n"))


def _masked(options: dict[str, Any] | None) -> dict[str, str] | None:
    """Return the names of storage options, which may be secret, without their values."""
    return None if options is None else dict.fromkeys(options, _MASK)


def _write_result(result: "TrainResult") -> None:
    figures = [(name, f"{value:.6g}") for name, value in sorted(result.metrics.items())]
    write_facts(
        [
            *figures,
            ("steps", f"{result.steps:,} in {result.epochs:,} epochs, {duration(result.seconds)}"),
            ("model", result.model_dir),
            ("checkpoint", result.checkpoint),
        ]
    )
