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


def hopeless(context):
    """Score 1 at each of three steps in good trials; a bad one has 0 and would then wait for minutes."""
    good = context.config["kind"] == "good"
    for step in (1, 2, 3):
        context.report({"score": float(good)}, step=step)
        if not good:
            Path(context.config["pids"], str(os.getpid())).touch()
            deadline = time.monotonic() + 600
            while time.monotonic() < deadline and not context.should_stop():
                time.sleep(0.05)
            if context.should_stop():
                context.save(step, {})
                return None
    return {"score": float(good)}


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
