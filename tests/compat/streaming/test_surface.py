"""MosaicML's public interface, as its installed package has it, is that of smalti.compat.streaming.

Modules, names, signatures with defaults, constants, members and bases of classes, attributes of objects. What is left
out stands in `left_out.py` with its reason.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.compat.streaming.left_out import IN_WORK, LEFT_OUT
from tests.peer_program import minimal_env, run_alone, run_beside

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "described_surface.py"
STUBS = ROOT / "tests/golden/peer_stubs"


@pytest.fixture(scope="module")
def surfaces(peer, tmp_path_factory):
    """Return the descriptions of both, by name."""
    python, paths = peer
    there, here = (tmp_path_factory.mktemp("surface") / name for name in ("there.json", "here.json"))
    run_alone([python, PROGRAM, there], minimal_env(paths))
    run_beside([sys.executable, "-m", "smalti.compat.streaming", PROGRAM, here, there], minimal_env([STUBS]))
    return json.loads(there.read_text()), json.loads(here.read_text())


def differs(there, here):
    """Return whether a program could notice: more base classes than there are allowed, and a setter."""
    if here is None or here.keys() != there.keys():
        return True
    if "bases" in there:
        return here["class"] != there["class"] or not set(there["bases"]) <= set(here["all bases"])
    return here != there and (there, here) != ({"attribute": "readable"}, {"attribute": "settable"})


def differences(surfaces):
    there, here = surfaces
    return {key: f"{there[key]} there, {here[key]} here" for key in there if differs(there[key], here[key])}


def covers(entry, key):
    return key == entry or key.startswith((f"{entry}.", f"{entry}:", f"{entry} "))


def listed(key):
    return any(covers(entry, key) for entry in [*LEFT_OUT, *IN_WORK])


def test_the_interface_is_mosaicmls_but_for_the_list(surfaces):
    found = differences(surfaces)
    assert {key: both for key, both in found.items() if not listed(key)} == {}


def test_nothing_stands_in_the_list_that_is_there(surfaces):
    found = differences(surfaces)
    assert [entry for entry in LEFT_OUT if not any(covers(entry, key) for key in found)] == []


def test_the_description_of_there_is_not_empty(surfaces):
    there, _ = surfaces
    assert len(there) > 800
    assert there["streaming.base.util:bytes_to_int"] == {"function": "(positional or keyword bytes_str)"}
    assert there["streaming.base.format.mds.writer:MDSWriter"]["all bases"] == ["JointWriter", "Writer"]
