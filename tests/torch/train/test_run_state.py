"""A checkpoint's state can be resumed from only if every field is present and of its type."""

import pytest

from smalti.errors import CheckpointError
from smalti.torch.train.trainer.state import check_state

pytestmark = pytest.mark.torch

MISSING = object()
STATE = {
    "epoch": 1,
    "sums": [0.5, 1, 2.0],
    "history": [{"loss": 0.25, "accuracy": 1.0}],
    "cursor": {},
    "optimizer": {},
    "config": {},
    "version": 3,
    "digest": "d1",
}


def test_a_complete_state_is_accepted():
    check_state(STATE)
    check_state({**STATE, "cursor": {"epoch": 1}})
    check_state({**STATE, "cursor": {"epoch": 2}})
    check_state({**STATE, "version": None, "more": "of a later release"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cursor", MISSING),
        ("cursor", "start"),
        ("config", MISSING),
        ("config", []),
        ("optimizer", MISSING),
        ("digest", MISSING),
        ("cursor", {"epoch": 3}),
        ("cursor", {"epoch": 0}),
        ("cursor", {"epoch": [1]}),
        ("version", MISSING),
        ("version", "newest"),
        ("sums", MISSING),
        ("sums", [1.0, 2.0]),
        ("sums", [1.0, "2", 3.0]),
        ("epoch", 1.5),
        ("epoch", -1),
        ("epoch", True),
        ("history", MISSING),
        ("history", []),
        ("history", [{"accuracy": 1.0}]),
        ("history", [1]),
    ],
)
def test_a_field_that_is_missing_or_of_another_type_is_named(field, value):
    state = {name: found for name, found in {**STATE, field: value}.items() if found is not MISSING}
    with pytest.raises(CheckpointError, match=rf"state\.json: `{field}` .* expected"):
        check_state(state)
