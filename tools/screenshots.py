"""Makes docs/images/dagster-*.png: a deployment of its own, a small set of drawn flowers, and headless Chromium.

    make screenshots      (four minutes on two cores; Chromium must be installed)

The pages are found by roles and texts, as a user finds them. `tests/nightly/test_ui.py` uses the same deployment.
"""

import argparse
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from PIL import Image
from playwright.sync_api import FloatRect, Locator, Page, expect, sync_playwright

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGES = REPOSITORY / "docs" / "images"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT = 1280, 860
SECONDS = 20.0
"""Longest wait for something that the UI shows."""
RUN_SECONDS = 240.0
"""Longest wait for a run."""


def find_chromium() -> str | None:
    """Return the path of the installed Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


# ---------------------------------------------------------------- the deployment


@contextmanager
def deployment(folder: Path, **environment: str) -> Iterator[str]:
    """Run `dagster dev` with records and data in a folder; yields the address of its UI.

    Raises:
        TimeoutError: it does not answer.
    """
    home = folder / "home"
    home.mkdir()
    shutil.copyfile(REPOSITORY / "deploy" / "sqlite" / "dagster.yaml", home / "dagster.yaml")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {
        "DAGSTER_HOME": str(home),
        "SMALTI_STAGE": "local",
        "SMALTI_ROOT": str(folder / "data"),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [str(Path(sys.executable).parent / "dagster"), "dev", "-h", "127.0.0.1", "-p", str(port)]
    with (folder / "dagster.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-w", "workspace.yaml"],
            cwd=REPOSITORY,
            env={**os.environ, **own, **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for_answer(f"http://127.0.0.1:{port}", folder / "dagster.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(process)


def _wait_for_answer(url: str, log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{url}/server_info", timeout=5):  # noqa: S310  on loopback
            return
        time.sleep(0.3)
    raise TimeoutError(f"Dagster does not answer on {url}; its log ends with:\n{log.read_text()[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a deployment, and whatever it has started."""
    started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    for each in [*started, process]:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            each.kill()
    psutil.wait_procs(started, 10)
    process.wait(10)


# ---------------------------------------------------------------- the UI


@contextmanager
def browser(chromium: str, url: str) -> Iterator[Page]:
    """Open a window of Chromium for the UI at an address."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        page = started.new_page(base_url=url, viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(SECONDS * 1000)
        try:
            yield page
        finally:
            started.close()


def fill_launchpad(page: Page, job: str, changes: Mapping[str, str]) -> None:
    """Open the Launchpad of a job, and change values, given by the line that holds each."""
    page.set_viewport_size({"width": WIDTH, "height": 1300})  # the editor has only the lines that are in sight
    page.goto(f"/locations/smalti/jobs/{job}/playground")
    page.get_by_text("No errors").wait_for()
    for line, value in changes.items():
        shown = page.locator("pre").filter(has_text=re.compile(rf"^\s*{re.escape(line)}\s*$"))
        shown.get_by_text(line.split(": ")[1], exact=True).dblclick()
        page.keyboard.type(value)
        page.locator("pre").filter(has_text=f"{line.split(': ')[0]}: {value}").wait_for()
    page.get_by_text("No errors").wait_for()


def launch(page: Page) -> str:
    """Press the button of the Launchpad; return the id of the run, whose page is then open."""
    page.get_by_role("button", name="Launch Run").click()
    page.wait_for_url("**/runs/*")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    return page.url.rsplit("/", 1)[1]


def wait_for_run(page: Page, *states: str, seconds: float = RUN_SECONDS) -> str:
    """Wait until the page of a run shows one of these states; return it.

    Raises:
        RuntimeError: the run has ended otherwise.
    """
    ends = ("Success", "Failure", "Canceled")
    shown = page.get_by_text(re.compile(f"^({'|'.join({*states, *ends})})$")).first
    shown.wait_for(timeout=seconds * 1000)
    found = shown.inner_text()
    if found not in states:
        raise RuntimeError(f"{page.url}: the run was expected to be {' or '.join(states)}, and is {found}")
    return found


def cancel_run(page: Page) -> None:
    """Cancel the run whose page is open."""
    page.get_by_role("button", name="Terminate").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile("Terminate")).click()
    dialog.get_by_role("button", name="Done").click()


def switch_sensor(page: Page, sensor: str) -> Locator:
    """Switch a sensor on, or off; return the rows of its ticks."""
    page.goto(f"/locations/smalti/sensors/{sensor}")
    page.get_by_role("row").filter(has_text="Running").locator("label").click()
    return page.get_by_role("row").filter(has=page.get_by_role("button", name="View logs"))


def open_tick(page: Page, tick: Locator) -> Locator:
    """Open the details of a tick."""
    tick.get_by_text(re.compile("requested$")).last.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Duration").wait_for()
    return dialog


def open_picture(page: Page, asset: str, key: str) -> Locator:
    """Open the dialog of a picture in the metadata of an asset."""
    page.goto(f"/assets/{asset}?view=overview")
    metadata_row(page, key).get_by_text("Show Markdown").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("img").first).to_be_visible(timeout=SECONDS * 1000)
    return dialog


def metadata_row(page: Page, key: str) -> Locator:
    """Return the row of a key in the metadata of an asset's page."""
    return page.get_by_role("row").filter(has=page.get_by_role("cell", name=key, exact=True))
