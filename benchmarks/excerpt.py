"""Copies tables out of a report into a page of the documentation, so that a new run needs no typing.

In the page, what stands between these two lines is replaced by what stands under that heading in the newest report of
that name in `results/`:

    <!-- from fleet: caches -->
    <!-- end -->

`python -m benchmarks excerpt docs/scale.md`
"""

import re
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
_PLACE = re.compile(r"(<!-- from (?P<name>[\w-]+): (?P<title>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def excerpt(page: str, results: Path = RESULTS) -> str:
    """The page with the tables of today's reports; places whose report is not there stay as they are.

    Raises:
        ValueError: a report has no such heading.
    """

    def filled(place: re.Match[str]) -> str:
        reports = sorted(results.glob(f"*-{place['name']}.md"))
        if not reports:
            return place[0]
        return f"{place[1]}{_section(reports[-1], place['title'])}\n{place[4]}"

    return _PLACE.sub(filled, page)


def _section(report: Path, title: str) -> str:
    heading = f"### {title}\n"
    text = report.read_text()
    if heading not in text:
        raise ValueError(
            f"{report} has no heading {title!r}; it has: {', '.join(re.findall('^### (.+)$', text, re.MULTILINE))}"
        )
    return re.split("^##", text.split(heading, 1)[1], maxsplit=1, flags=re.MULTILINE)[0].strip()
