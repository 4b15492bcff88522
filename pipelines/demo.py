"""`python -m pipelines.demo`: the whole job once, from images to a trained model, with progress and a summary.

The run is an ordinary one of `flowers_everything_job`, executed in this process and recorded where `make ui` looks.
"""

import argparse
import os
import sys
import time
import traceback
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.home import REPOSITORY, detect_home

STAGES = ("flowers/raw", "flowers/prepared", "flowers/shards", "flowers/model")
"""The assets of the demo: the data set `flowers`, with what the command line overrides for this run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status: 0, or 1 after a fault that a message has explained."""
    options = parse(arguments)
    if options.data:
        os.environ["SMALTI_ROOT"] = str(Path(options.data).absolute())
    if not options.verbose:
        warnings.simplefilter("ignore")  # of Dagster and Spark, about themselves
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers shows one when it saves a file
    try:
        _run(options)
    except KeyboardInterrupt:
        _say("\nstopped; what was published before stays as it is")
        return 130
    except BaseException as error:  # noqa: BLE001  a person gets a message, whatever it was
        if options.verbose or isinstance(error, SystemExit):
            traceback.print_exception(error)
        hint = "" if options.verbose else "\n(--verbose shows where it happened)"
        print(f"\nThe demo cannot go on: {explain(error)}{hint}", file=sys.stderr, flush=True)
        return 1
    return 0


def explain(error: BaseException) -> str:
    """Return what went wrong, and what to do about it in the words of the command line."""
    from pipelines.faults import describe_fault

    message = describe_fault(error)
    if "few_images_were_left_out" in message:
        message += "\nTo leave those files out, give --skip-bad-images (make demo ARGS=--skip-bad-images)."
    if "no_class_vanished" in message:  # what is gone was said when the check was made
        message += "\nIf those images are meant to go, give --replace (make demo ARGS=--replace)."
    return message


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.demo", description="From images to a trained model.")
    parser.add_argument(
        "--source",
        default=os.environ.get("SOURCE", ""),
        help="folder with one sub-folder per class (path, s3://, gs://, abfs://, dbfs:/Volumes/...), or an archive of "
        "one (path or URL); by default what `flowers` declares: $FLOWERS_URL, else drawn ones. Default: $SOURCE",
    )
    parser.add_argument("--data", default="", help="where everything is written. Default: $SMALTI_ROOT, or data/")
    parser.add_argument("--images-per-class", type=int, default=160, help="of drawn flowers. Default: %(default)s")
    parser.add_argument("--image-size", type=int, default=64, help="in pixels. Default: %(default)s")
    parser.add_argument("--epochs", type=int, default=40, help="Default: %(default)s")
    parser.add_argument("--processes", type=int, default=1, help="training processes. Default: %(default)s")
    parser.add_argument(
        "--skip-bad-images", action="store_true", help="leave out files that are no images, however many"
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="let classes and rows of the last time go, as another --source does; without it they are missed",
    )
    parser.add_argument("--verbose", action="store_true", help="show warnings, and where a fault happened")
    return parser.parse_args(arguments)


def run_config(options: argparse.Namespace) -> dict[str, Any]:
    """The configuration of the run, as the Launchpad would show it."""
    configs: dict[str, dict[str, Any]] = {
        "raw": {"generate_options": {"per_class": options.images_per_class}},
        "prepared": {
            "image_size": options.image_size,
            **({"on_bad_image": "skip", "max_bad_share": 1.0} if options.skip_bad_images else {}),
        },
        # Who names a source means to have it in place of the last one.
        "shards": {"accept_removed": ["*"]} if options.source or options.replace else {},
        "model": {"epochs": options.epochs},
    }
    if options.source:
        configs["raw"] |= {"source": options.source}
    if options.processes > 1:
        configs["model"] |= {"launcher": "processes", "num_processes": options.processes}
    model = configs.pop("model")
    return {
        "ops": {"flowers__data": {"config": configs}, "flowers__model": {"config": model}},
        "loggers": {"progress": {}},
    }


def _run(options: argparse.Namespace) -> None:
    from smalti.spark import detect_java

    detect_java()  # before anything is drawn or written
    place = _short(os.environ.get("SMALTI_ROOT") or "data")
    _say(f"From images to a trained model in {len(STAGES)} stages; everything is written to {place}.")
    home = detect_home()
    import dagster as dg

    from pipelines.definitions import defs
    from pipelines.progress import progress_logger
    from smalti_dagster.runs.launcher import cancel_dead_commands
    from smalti_dagster.runs.process import process_tags

    begin = time.monotonic()
    logged = dg.Definitions.merge(defs(), dg.Definitions(loggers={"progress": progress_logger(STAGES, _say)}))
    job = logged.resolve_job_def("flowers_everything_job")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        cancel_dead_commands(instance)
        run_id = str(uuid.uuid4())
        job.execute_in_process(
            run_config=run_config(options), instance=instance, run_id=run_id, tags=process_tags(run_id)
        )
        _say(_summary(instance, run_id, seconds=time.monotonic() - begin))


def _summary(instance: Any, run_id: str, *, seconds: float) -> str:
    import dagster as dg

    from smalti_dagster.lineage import facts_of, made_in

    facts = {}
    for name in STAGES:
        event = made_in(instance, dg.AssetKey(name.split("/")), run_id)
        facts[name] = facts_of(event) if event is not None else {}
    raw, rows, shards, model = (facts[name] for name in STAGES)
    left_out = f", {rows['bad_images']} left out as bad" if rows["bad_images"] else ""
    return (
        f"\nDone in {seconds:.0f} s.\n"
        f"  images    {raw['images']} read from {_short(raw['folder'])}{left_out}\n"
        f"  shards    {shards['shards']}, {shards['dagster/size_bytes']:,} bytes, in {_short(shards['dagster/uri'])}\n"
        f"  version   {shards['version']}, digest {shards['digest'][:16]}\n"
        f"  accuracy  {model['accuracy']:.3f} on {model['held_out_images']} held-out images "
        f"(chance {model['chance']:.2f})\n"
        f"  training  {model['images_per_second']:.0f} images/s, {model['data_fraction']:.0%} of its time waiting for "
        f"data\n"
        f"  model     {_short(model['model'])}\n"
        f"  look at it with: make ui"
    )


def _short(place: str) -> str:
    """A path from here, where that is shorter."""
    return str(Path(place).relative_to(REPOSITORY)) if place.startswith(f"{REPOSITORY}/") else place


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
