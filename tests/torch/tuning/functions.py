"""Functions of trials, which need no training to have a figure."""

import os
import time
from pathlib import Path


def parabola(context):
    """The best is x = 0 of the good kind."""
    x = context.config["x"]
    if x > 1:
        raise ValueError(f"x is above one: {x}")
    return {"score": 1 - x**2 - (3 if context.config["kind"] == "bad" else 0)}


def constant(context):
    return {"score": context.config["x"]}


def loud(context):
    """Write to standard output without a newline, as libraries in C do, and what looks like a message."""
    os.write(1, b"smalti-trial:{}\nno newline")
    return {"score": context.config["x"]}


def hopeless(context):
    """Report a score of 1; from the fourth trial on one of 0, for minutes."""
    is_bad = int(context.run.run_dir[-5:]) >= 3
    step, deadline = 0, time.monotonic() + 240
    while step < 3 or (is_bad and time.monotonic() < deadline):
        step += 1
        context.report({"score": float(not is_bad)}, step=step)
        if is_bad:
            time.sleep(0.05)
    return {"score": float(not is_bad)}


def steps_to(context):
    """Three steps with a checkpoint each; at the second, wait until the file `go` is there."""
    checkpoint = context.latest()
    begin = 0 if checkpoint is None else checkpoint.step
    for step in range(begin + 1, 4):
        if step == 2:
            Path(context.config["folder"], f"waits-{os.getpid()}").touch()
            deadline = time.monotonic() + 600
            while time.monotonic() < deadline and not Path(context.config["folder"], "go").exists():
                time.sleep(0.05)
                if context.should_stop():
                    return None
        context.save(step, {})
    return {"score": context.config["x"], "began_at": begin}


def version_read(context):
    """Return the number of the version that the trial reads."""
    return {"score": context.dataloader("train", batch_size=5).streaming_dataset.manifest.version}
