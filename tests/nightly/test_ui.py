"""The pages of a running instance in headless Chromium, used as a person uses them; found by roles and texts.

It needs Chromium and playwright, and takes about two minutes: one Spark session and two trainings.
"""

import re

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")

from playwright.sync_api import expect

from assets.drawing import draw_flowers
from tools.screenshots import (
    browser,
    cancel_run,
    deployment,
    fill_launchpad,
    find_chromium,
    launch,
    metadata_row,
    open_picture,
    open_tick,
    switch_sensor,
    wait_for_run,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A window on a deployment with the shipped sets; `flowers` has 8 photos of each class."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    folder = tmp_path_factory.mktemp("ui")
    draw_flowers(folder / "photos", per_class=8)
    with deployment(folder, FLOWERS_URL=str(folder / "photos")) as url, browser(chromium, url) as page:
        yield page


def test_the_graph_shows_the_shipped_sets(page):
    page.goto("/asset-groups")
    for name in ("flowers", "tokens"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    page.goto("/locations/smalti/asset-groups/flowers/lineage")
    for name in ("source", "raw", "prepared", "shards", "model", "promoted"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()


def test_a_run_is_launched_with_a_changed_value_and_watched_until_it_succeeds(page):
    fill_launchpad(page, "flowers_everything_job", {"image_size: 96": "32", "epochs: 30": "2"})
    run = launch(page)
    wait_for_run(page, "Started", "Success")
    wait_for_run(page, "Success")
    assert re.fullmatch(r"[0-9a-f-]{36}", run)
    page.goto("/assets/flowers/prepared?view=overview")
    changed = metadata_row(page, "overridden_in_this_run")
    expect(changed).to_contain_text('"image_size"')
    expect(changed).to_contain_text('"in this run": 32')


def test_the_pages_of_assets_show_gallery_and_curves(page):
    dialog = open_picture(page, "flowers/prepared", "gallery")
    assert dialog.locator("img").first.evaluate("image => image.naturalWidth") > 500
    page.goto("/assets/flowers/model?view=overview")
    curves = metadata_row(page, "curves").get_by_role("img", name="curves")
    expect(curves).to_be_visible()
    assert curves.evaluate("image => image.complete && image.naturalWidth") == 288
    open_picture(page, "flowers/model", "confusion_picture")


def test_the_checks_of_the_shards_have_passed(page):
    page.goto("/assets/flowers/shards?view=checks")
    expect(page.get_by_text("hashes_verify").first).to_be_visible()
    expect(page.get_by_text(re.compile("^Passed$")).first).to_be_visible()


def test_a_run_is_cancelled_while_it_trains(page):
    fill_launchpad(page, "flowers_train_job", {"epochs: 30": "10000"})
    launch(page)
    expect(page.get_by_text(re.compile("^training on 3. images")).first).to_be_visible(timeout=120_000)
    cancel_run(page)
    wait_for_run(page, "Canceled", seconds=60)


def test_a_tick_of_a_sensor_shows_its_reason(page):
    ticks = switch_sensor(page, "flowers_watch_sensor")
    expect(ticks.first).to_be_visible(timeout=90_000)
    dialog = open_tick(page, ticks.first)
    expect(dialog).to_contain_text("nothing changed: the content is still")
    page.keyboard.press("Escape")
    switch_sensor(page, "flowers_watch_sensor")
