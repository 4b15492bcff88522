"""Makes docs/images/dagster-*.png: a deployment of its own, a small set of drawn flowers, and headless Chromium.

    make screenshots      (four minutes on two cores; Chromium must be installed)
    make docs && make screenshots ARGS=--site      (pictures of the site, to look at, in build/screenshots)

The pages are found by roles and texts, as a user finds them. `tests/nightly/test_ui.py` uses the same deployment.
"""

import argparse
import functools
import http.server
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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
_RUN = re.compile("^[0-9a-f]{8}$")  # a link to one
SITE = REPOSITORY / "build" / "site"
LOOKS = {"light": (WIDTH, "light"), "dark": (WIDTH, "dark"), "phone": (390, "light"), "phone-dark": (390, "dark")}
"""By name: the width of the window, and the colours that its user prefers."""
SITE_PAGES = (
    "", "first-hour/", "comparison/", "mosaicml/", "training/", "concepts/order/", "concepts/cache/", "api/reading/",
    "troubleshooting/", "support/",
)  # fmt: skip


def find_chromium() -> str | None:
    """Return the path of the installed Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


# ---------------------------------------------------------------- the deployment


@contextmanager
def deployment(folder: Path, project: Path = REPOSITORY, **environment: str) -> Iterator[str]:
    """Run `dagster dev` with records and data in a folder; yields the address of its UI.

    Args:
        folder: Of the records, the data and the log.
        project: A copy of the repository, whose data sets are loaded.
        environment: Further variables.

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
            cwd=project,
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
    return str(page.url).rsplit("/", 1)[1]


def materialize(page: Page, group: str) -> str:
    """Press *Materialize all* in the graph of a group, and open the page of the run; return its id."""
    page.goto(f"/locations/smalti/asset-groups/{group}/lineage")
    page.get_by_text("Materialize all").click()
    page.get_by_text("View", exact=True).click()  # of the message that a run was launched
    page.wait_for_url("**/runs/*")
    return str(page.url).rsplit("/", 1)[1]


def wait_for_run(page: Page, *states: str, seconds: float = RUN_SECONDS) -> str:
    """Wait until the page of a run shows one of these states; return it.

    Raises:
        RuntimeError: the run has ended otherwise.
    """
    ends = ("Success", "Failure", "Canceled")
    shown = page.get_by_text(re.compile(f"^({'|'.join({*states, *ends})})$")).first
    shown.wait_for(timeout=seconds * 1000)
    found: str = shown.inner_text()
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
    return _ticks(page)


def _ticks(page: Page) -> Locator:
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
    expect(dialog.locator("img").first).to_be_visible(timeout=SECONDS * 1000)
    return dialog


def metadata_row(page: Page, key: str) -> Locator:
    """Return the row of a key in the metadata of an asset's page."""
    return page.get_by_role("row").filter(has=page.get_by_role("cell", name=key, exact=True))


# ---------------------------------------------------------------- the pictures


class Pictures:
    """Takes pictures of a window, and keeps them below a folder."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page, self._folder = page, folder

    def take(self, name: str, *, clip: FloatRect | None = None, has_photos: bool = False) -> None:
        """Keep what the window shows, or a part of it, in 256 colours if there are no photos."""
        self._page.wait_for_timeout(1500)  # animations, and pictures that are being decoded
        data = self._page.screenshot(clip=clip, animations="disabled", caret="hide")
        image = Image.open(io.BytesIO(data)).convert("RGB")
        if not has_photos:
            image = image.quantize(256, dither=Image.Dither.NONE)
        path = self._folder / f"dagster-{name}.png"
        image.save(path, optimize=True)
        print(f"{path.name}: {image.width} x {image.height}, {path.stat().st_size / 1000:.0f} kB", flush=True)

    def take_rows(self, name: str, asset: str, first: str, last: str) -> None:
        """Keep the rows of an asset's metadata from one key to another."""
        self._page.set_viewport_size({"width": 1900, "height": 4000})
        self._page.goto(f"/assets/{asset}?view=overview")
        begin, end = (_box(metadata_row(self._page, key)) for key in (first, last))
        right = _box(self._page.get_by_text("Plots", exact=True))  # the rows are wider than the pane that shows them
        width, height = right["x"] + right["width"] - begin["x"], end["y"] + end["height"] - begin["y"]
        self.take(name, clip={"x": begin["x"], "y": begin["y"], "width": width, "height": height})
        self._page.set_viewport_size({"width": WIDTH, "height": HEIGHT})

    def take_dialog(self, name: str, dialog: Locator, *, height: float | None = None) -> None:
        """Keep an open dialog, or its upper part."""
        self._page.wait_for_timeout(500)  # it is being unfolded
        box = _box(dialog)
        self.take(name, clip={**box, "height": height or box["height"]}, has_photos=name == "gallery")


def _box(shown: Locator) -> FloatRect:
    """Return the place of something that the window shows.

    Raises:
        LookupError: it does not.
    """
    box = shown.bounding_box()
    if box is None:
        raise LookupError(f"{shown} is not visible")
    return box


def make_pictures(page: Page, pictures: Pictures, photos: Path, *, epochs: int) -> None:
    """Use a deployment as a person does, and take pictures on the way."""
    fill_launchpad(page, "flowers_everything_job", {"epochs: 30": str(epochs)})
    pictures.take("launchpad")
    launch(page)
    page.get_by_text(re.compile("^epoch 2 of")).first.wait_for(timeout=RUN_SECONDS * 1000)
    pictures.take("run")
    wait_for_run(page, "Success")
    _draw(photos, range(48, 56))
    ticks = _wait_for_request(page, "flowers_watch_sensor")
    page.set_viewport_size({"width": 1440, "height": HEIGHT})
    pictures.take("sensor")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    _open_requested(page, ticks)
    wait_for_run(page, "Success")
    fill_launchpad(page, "tokens_reshard_job", {})
    launch(page)
    _open_requested(page, _wait_for_request(page, "flowers_train_sensor"))
    wait_for_run(page, "Success")
    fill_launchpad(page, "flowers_promote_job", {})
    launch(page)
    wait_for_run(page, "Success")
    page.goto("/locations/smalti/sensors/flowers_watch_sensor")
    pictures.take_dialog("tick", open_tick(page, _ticks(page).filter(has_text="0 runs").last), height=190)
    take_assets(page, pictures)


def _wait_for_request(page: Page, sensor: str) -> Locator:
    """Switch a sensor on, and return its ticks when one has requested a run."""
    ticks = switch_sensor(page, sensor).filter(has_text="1 run")
    ticks.first.wait_for(timeout=150_000)
    return ticks


def _open_requested(page: Page, ticks: Locator) -> None:
    """Open the page of the run that a tick has requested, in this window."""
    page.goto(ticks.get_by_role("link", name=_RUN).first.get_attribute("href") or "")


def take_assets(page: Page, pictures: Pictures) -> None:
    """Take pictures of what was made."""
    page.goto("/locations/smalti/asset-groups/flowers/lineage")
    page.get_by_text("Hide navigation").click()
    page.set_viewport_size({"width": 1840, "height": 440})
    page.reload()
    page.get_by_text("Materialized").nth(4).wait_for()
    pictures.take("graph")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    pictures.take_dialog("gallery", open_picture(page, "flowers/prepared", "gallery"))
    pictures.take_dialog("curves", open_picture(page, "flowers/model", "curves_picture"))
    pictures.take_dialog("confusion", open_picture(page, "flowers/model", "confusion_picture"))
    pictures.take_rows("prepared", "flowers/prepared", "what_was_done", "bad_image_table")
    pictures.take_rows("shards", "flowers/shards", "what_was_done", "version_history")
    pictures.take_rows("model", "flowers/model", "curves", "confused_pairs")
    page.goto("/assets/flowers/shards?view=checks")
    page.get_by_text("no_class_vanished").first.click()
    page.get_by_text("Latest execution").wait_for()
    pictures.take("checks")


# ---------------------------------------------------------------- the documentation site


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder; yields the address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def take_site(page: Page, folder: Path) -> bool:
    """Take pictures of pages of the site in all looks; return whether every page is as narrow as a telephone."""
    folder.mkdir(parents=True, exist_ok=True)
    for look, (width, colours) in LOOKS.items():
        page.emulate_media(color_scheme="dark" if colours == "dark" else "light")
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.goto("/")
        page.evaluate("localStorage.clear()")  # where the theme keeps the colours of the first visit
        for address in SITE_PAGES:
            page.goto(f"/{address}")
            page.screenshot(
                path=folder / f"{address.strip('/').replace('/', '-') or 'home'}-{look}.png", full_page=True
            )
        page.goto("/")
        _search(page, "is bytes, and alone takes cache_limit")
        page.screenshot(path=folder / f"search-{look}.png")
    wide = list(_wide_pages(page))
    print(f"pictures of {len(SITE_PAGES)} pages in {folder}; wider than a telephone: {', '.join(wide) or 'none'}")
    return not wide


def _search(page: Page, words: str) -> None:
    """Search, and wait for results."""
    if not page.get_by_role("textbox", name="Search").is_visible():
        page.locator("label[for=__search]").first.click()
    page.get_by_role("textbox", name="Search").fill(words)
    page.locator(".md-search-result__item").first.wait_for()


def _wide_pages(page: Page) -> Iterator[str]:
    """Yield the pages that a telephone has to be moved over sideways."""
    page.set_viewport_size({"width": LOOKS["phone"][0], "height": HEIGHT})
    for path in sorted(SITE.rglob("index.html")):
        address = path.parent.relative_to(SITE).as_posix()
        page.goto(f"/{address}/")
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            yield address


def _draw(photos: Path, numbers: range) -> None:
    """Draw photos of flowers with these numbers, and a file that is none."""
    from assets.drawing import FLOWER_CLASSES, draw_flower

    for name in FLOWER_CLASSES:
        (photos / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (photos / name / f"{name}_{number:03d}.jpg").write_bytes(draw_flower(name, number=number))
    (photos / "roses" / "notes.jpg").write_text("no image")


def main() -> int:
    """Make the pictures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, help="folder. Default: docs/images, or build/screenshots with --site")
    parser.add_argument("--site", action="store_true", help="of the documentation site, which `make docs` builds")
    parser.add_argument("--epochs", type=int, default=20, help="of the first training. Default: %(default)s")
    options = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        print("Chromium is not installed: apt-get install chromium", file=sys.stderr)
        return 1
    if options.site:
        with served(SITE) as url, browser(chromium, url) as page:
            return 0 if take_site(page, options.to or REPOSITORY / "build" / "screenshots") else 1
    with tempfile.TemporaryDirectory(prefix="smalti-") as made:
        folder = Path(made)
        photos = folder / "photos"
        _draw(photos, range(48))
        with deployment(folder, FLOWERS_URL=str(photos)) as url, browser(chromium, url) as page:
            make_pictures(page, Pictures(page, options.to or IMAGES), photos, epochs=options.epochs)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    sys.exit(main())
