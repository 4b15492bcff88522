"""Ray Train, where it is installed: two workers stop in the middle of an epoch, and one resumes it."""

import pytest

ray = pytest.importorskip("ray", reason="needs ray (pip install 'ray[train]'), 600 MB")

from examples import ray_resume as example  # noqa: E402 -- only where it is installed

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=4, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_one_worker_resumes_what_two_began(tmp_path):
    example.write_set(str(tmp_path / "set"))
    whole = example.run(tmp_path, "whole", num_workers=2)
    checkpoint = example.run(tmp_path, "first", num_workers=2, max_steps=3)
    example.run(tmp_path, "same", num_workers=2, checkpoint=checkpoint)
    example.run(tmp_path, "one", num_workers=1, checkpoint=checkpoint)
    assert whole is not None
    expected, first = example.seen_by(tmp_path, "whole"), example.seen_by(tmp_path, "first")
    same, (one,) = example.seen_by(tmp_path, "same"), example.seen_by(tmp_path, "one")
    assert [before + after for before, after in zip(first, same, strict=True)] == expected
    assert [len(batches) for batches in first] == [3, 3]
    read = [number for batches in first for batch in batches for number in batch]
    rest = [number for batch in one for number in batch]
    assert len(one) == 7
    assert sorted(read + rest[:26]) == list(range(50))
