"""The rule for classes that users subclass: the library reads no public name of an instance but those to override.

Each class is subclassed with all of its public names replaced at once, in the class, before or after
`super().__init__`, and is then used in every way. Whoever reads or assigns a replaced name of the class fails.
"""

import json

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

from smalti.attributes import Replaceable
from smalti.compat.petastorm import BatchedDataLoader, TransformSpec, make_batch_reader
from smalti.compat.petastorm import DataLoader as RowLoader
from smalti.dataset.local import LocalDataset as CoreLocalDataset
from smalti.stream import Stream
from smalti.torch import LocalDataset, StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter
from tests.compat.parquet_files import url, write_rows
from tests.shard_sets import COLUMNS, sample, write_set

pytestmark = pytest.mark.torch

SIZE = 45


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("rules") / "root", SIZE))


class Poison:
    """Takes the place of a name; reading or assigning it on an instance fails."""

    def __init__(self, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        raise AssertionError(f"the library reads `{self.name}` of an instance")

    def __set__(self, instance, value):
        raise AssertionError(f"the library assigns `{self.name}` of an instance")


def public_names(kind, *, but=(), base=object):
    return sorted(name for name in set(dir(kind)) - set(dir(base)) - set(but) if not name.startswith("_"))


DATASET_NAMES = public_names(StreamingDataset, but=["get_item"], base=IterableDataset)
OWN_NAMES = [name for name in DATASET_NAMES if name != "next_epoch"]  # a documented setter, for users of a dataset
PoisonedDataset = type("PoisonedDataset", (StreamingDataset,), {name: Poison(name) for name in DATASET_NAMES})


class OwnAttributes(StreamingDataset):
    """Has an attribute of its own for each public name of its base, from before and from after the base is made."""

    def __init__(self, *, first, **options):
        if first:
            self.assign()
        super().__init__(**options)
        if not first:
            self.assign()

    def assign(self):
        for name in OWN_NAMES:
            setattr(self, name, f"my {name}")


DATASETS = {
    "replaced in the class": PoisonedDataset,
    "assigned before": lambda **options: OwnAttributes(first=True, **options),
    "assigned after": lambda **options: OwnAttributes(first=False, **options),
}
PROCESSES = [pytest.mark.process]
READERS = [
    pytest.param({"num_workers": 0}, id="no workers"),
    pytest.param({"num_workers": 2, "worker_kind": "thread"}, id="threads"),
    pytest.param({"num_workers": 2, "worker_kind": "process"}, id="processes", marks=PROCESSES),
]


def ids(batches):
    return [batch["id"].tolist() if hasattr(batch["id"], "tolist") else batch["id"] for batch in batches]


def flat(batches):
    return [number for batch in batches for number in batch]


def plain_ids(samples):
    return [each["id"] for each in samples]


def test_the_public_names_are_those_that_the_issue_was_about():
    assert {
        "stream",
        "num_samples",
        "epoch_size",
        "stats",
        "close",
        "cursor",
        "batches",
    } <= set(DATASET_NAMES)


def by_turns(values, *, without):
    """Return each value with each kind of dataset; with workers, one of the kinds each, and all in the nightly run."""
    pairs = []
    for place, value in enumerate(values):
        plain = value if hasattr(value, "values") else pytest.param(value, id=str(value))
        for number, (name, make) in enumerate(DATASETS.items()):
            is_default = plain.values[0] == without or number == place
            marks = [*plain.marks, *([] if is_default else [pytest.mark.nightly])]
            pairs.append(pytest.param(*plain.values, make, id=f"{plain.id}-{name}", marks=marks))
    return pairs


@pytest.mark.parametrize(("how", "make"), by_turns(READERS, without={"num_workers": 0}))
def test_a_loader_reads_and_resumes_whatever_a_subclass_of_the_dataset_calls_its_own(root, make, how):
    options = {"remote": root, "shuffle": True, "batch_size": 8, "include_ids": True}
    whole = StreamingDataLoader(StreamingDataset(**options))
    expected = ids(whole) + ids(whole)
    loader = StreamingDataLoader(make(**options), **how)
    batches = iter(loader)
    before = [next(batches)["id"].tolist() for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    resumed = StreamingDataLoader(make(**options), **how)
    resumed.load_state_dict(state)
    assert len(resumed) == 6
    assert before + ids(resumed) + ids(resumed) == expected


@pytest.mark.parametrize(("workers", "make"), by_turns([0, pytest.param(2, id="2", marks=PROCESSES)], without=0))
def test_a_plain_loader_reads_and_resumes_whatever_a_subclass_calls_its_own(root, make, workers):
    options = {"remote": root, "shuffle": True, "batch_size": 8}
    how = {"batch_size": 8, "num_workers": workers, "collate_fn": plain_ids}
    whole = StreamingDataLoader(StreamingDataset(**options))
    expected = ids(whole) + ids(whole)
    dataset = make(**options)
    batches = iter(DataLoader(dataset, **how))
    before = [next(batches) for _ in range(2)]
    state = StreamingDataset.state_dict(dataset, 16, True)
    del batches
    resumed = make(**options)
    StreamingDataset.load_state_dict(resumed, state)
    loader = DataLoader(resumed, **how)
    assert len(loader) == 6
    assert before + list(loader) + list(loader) == expected
    assert [each["id"] for each in (resumed[0], *resumed[-2:], resumed[np.int64(7)])] == [0, 43, 44, 7]


class Delegating(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = {"a": 1}

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Closing(StreamingDataset):
    """Closes what it has open when it is pickled or copied, and does not open it again."""

    def __init__(self, **options):
        super().__init__(**options)
        self.file = "open"

    def __getstate__(self):
        return vars(self) | {"file": None}

    def __getitem__(self, at):
        assert self.file == "open"
        return super().__getitem__(at)


class Locked(StreamingDataset):
    def __setattr__(self, name, value):
        raise AttributeError(f"{name} cannot be assigned")


class Uncopied(StreamingDataset):
    def __copy__(self):
        raise TypeError("not to be copied")


class Slotted(StreamingDataset):
    __slots__ = ("transform", "unset")

    def __init__(self, **options):
        self.transform = "own"
        super().__init__(**options)

    def __getitem__(self, at):
        assert self.transform == "own"
        return super().__getitem__(at)


@pytest.mark.parametrize("kind", [Delegating, Closing, Locked, Uncopied, Slotted])
def test_a_loader_uses_nothing_by_which_a_subclass_is_copied_pickled_or_assigned(root, kind):
    expected = ids(StreamingDataLoader(StreamingDataset(remote=root, batch_size=8)))
    assert ids(StreamingDataLoader(kind(remote=root, batch_size=8))) == expected


@pytest.mark.parametrize("first", [True, False])
def test_attributes_of_a_subclass_keep_their_values(root, first):
    dataset = OwnAttributes(first=first, remote=root, batch_size=8, transform=dict)
    assert {name: getattr(dataset, name) for name in OWN_NAMES} == {name: f"my {name}" for name in OWN_NAMES}
    del dataset.transform
    assert dataset.transform is dict, "the constructor's argument"
    with pytest.raises(AttributeError, match="`transform` of OwnAttributes cannot be deleted"):
        del dataset.transform


# ---------------------------------------------------------------------- transforms


class Doubling(StreamingDataset):
    """As most picture classes in public code for MosaicML Streaming do it."""

    def __init__(self, *, first, transform, **options):
        if first:
            self.transform = transform
        super().__init__(**options)
        self.transform = transform

    def __getitem__(self, at):
        return self.transform(super().__getitem__(at))


def doubled(sample):
    return {"id": sample["id"] * 2}


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("first", [True, False])
def test_a_transform_that_a_subclass_applies_itself_is_applied_once(root, how, first):
    dataset = Doubling(remote=root, batch_size=9, first=first, transform=doubled)
    assert dataset[3] == {"id": 6}
    assert dataset.transform is doubled
    assert flat(ids(StreamingDataLoader(dataset, **how))) == [2 * n for n in range(SIZE)]


def test_the_constructors_transform_and_a_subclasss_own_are_each_applied_once(root):
    class Both(StreamingDataset):
        def __init__(self, **options):
            super().__init__(**options)
            self.transform = doubled

        def get_item(self, sample_id):
            return self.transform(super().get_item(sample_id))

    assert Both(remote=root, transform=lambda each: {"id": each["id"] + 1})[3] == {"id": 8}


def test_a_get_item_that_is_assigned_is_called_by_loaders(root):
    class Assigning(StreamingDataset):
        def __init__(self, **options):
            super().__init__(**options)
            self.get_item = lambda sample_id: {"id": -sample_id}

    loader = StreamingDataLoader(Assigning(remote=root, batch_size=45))
    assert ids(loader) == [[-n for n in range(SIZE)]]


def test_on_an_instance_of_the_librarys_own_class_options_can_be_assigned_and_facts_cannot(root):
    dataset = StreamingDataset(remote=root)
    dataset.transform, dataset.batch_size, dataset.include_ids = doubled, np.int64(45), True
    assert dataset[3] == {"id": 6}
    assert [each["_position"] for each in dataset][:3] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"`batch_size` must be a whole number from 1 to 2147483647, found 2\.5"):
        dataset.batch_size = 2.5
    with pytest.raises(AttributeError, match="`num_samples` of StreamingDataset cannot be assigned"):
        dataset.num_samples = 3


def test_a_dataset_that_overrides_iter_is_refused_by_a_loader_that_would_not_call_it(root):
    class Iterating(StreamingDataset):
        def __iter__(self):
            return map(doubled, super().__iter__())

    dataset = Iterating(remote=root, batch_size=9)
    with pytest.raises(TypeError, match=r"Iterating overrides `__iter__`.*`__getitem__`.*DataLoader"):
        StreamingDataLoader(dataset)
    loader = DataLoader(dataset, batch_size=9, collate_fn=plain_ids)
    assert flat(loader) == [2 * n for n in range(SIZE)]


# ---------------------------------------------------------------------- the other classes


def poisoned(kind, *, but=(), base=object):
    names = {name: Poison(name) for name in public_names(kind, but=but, base=base)}
    return type(f"Poisoned{kind.__name__}", (kind,), names)


@pytest.mark.parametrize("how", READERS)
def test_a_subclass_of_the_loader_may_replace_what_torch_does_not_need(root, how):
    kind = poisoned(StreamingDataLoader, base=DataLoader)
    dataset = StreamingDataset(remote=root, shuffle=True)
    loader = kind(dataset, 8, **how)
    assert len(loader) == 6
    batches = iter(loader)
    next(batches), next(batches)
    state = StreamingDataLoader.state_dict(loader)
    batches.close()
    StreamingDataLoader.load_state_dict(loader, state)
    assert len(ids(loader)) == 4


@pytest.mark.parametrize("kind", [CoreLocalDataset, LocalDataset], ids=["core", "torch"])
def test_a_subclass_of_a_local_dataset_may_replace_every_name_but_get_item(root, kind):
    dataset = poisoned(kind, but=["get_item"])(root)
    assert len(dataset) == SIZE
    assert [each["id"] for each in (dataset[0], *dataset[[-1, 2]])] == [0, 44, 2]

    class Own(kind):
        def __init__(self, local):
            self.split = self.shards = "mine"
            super().__init__(local)
            self.num_samples = 7

    own = Own(root)
    assert (own.split, own.shards, own.num_samples, own.size, len(own)) == ("mine", "mine", 7, SIZE, SIZE)


def test_a_subclass_of_a_stream_may_have_a_weight_of_its_own(root):
    class Weighed(Stream):
        weight = options = None

    dataset = StreamingDataset(streams=[Weighed(remote=root, repeat=2)], batch_size=9)
    assert len(dataset) == 2 * SIZE


def test_a_subclass_of_a_writer_may_replace_every_name_but_finish(tmp_path):
    with poisoned(MDSWriter, but=["finish", "write"])(out=str(tmp_path / "set"), columns=COLUMNS) as writer:
        writer.write(sample(0))
    assert LocalDataset(tmp_path / "set").size == 1

    class Own(MDSWriter):
        def __init__(self, **options):
            self.manifest = "mine"
            super().__init__(**options)
            self.write_id = "mine"

    with Own(out=str(tmp_path / "other"), columns=COLUMNS) as own:
        own.write(sample(0))
    assert (own.manifest, own.write_id, LocalDataset(tmp_path / "other").size) == ("mine", "mine", 1)


@pytest.mark.parametrize("kind", [RowLoader, BatchedDataLoader])
def test_a_subclass_of_petastorms_loaders_and_of_its_transform_may_replace_every_name(tmp_path, kind):
    class Spec(TransformSpec):
        func = edit_fields = removed_fields = selected_fields = "mine"

    folder = write_rows(tmp_path)
    reader = make_batch_reader(url(folder), shuffle_row_groups=False, transform_spec=Spec(selected_fields=["id"]))
    with poisoned(kind)(reader, batch_size=7) as loader:
        first = next(iter(loader))
        assert list(first) == ["id"]
        assert len(first["id"]) == 7
        assert kind.state_dict(loader)["sample_in_epoch"] == 7


def test_every_computed_attribute_of_these_classes_can_be_assigned():
    """A plain property has no setter, and would refuse an attribute of a subclass."""
    kinds = [StreamingDataset, StreamingDataLoader, LocalDataset, MDSWriter, Stream, TransformSpec, RowLoader]
    found = {
        (kind.__name__, name)
        for kind in kinds
        for name in public_names(kind, base=DataLoader if kind is StreamingDataLoader else object)
        if isinstance(getattr(kind, name), property) and not isinstance(getattr(kind, name), Replaceable)
    }
    assert found == {("StreamingDataset", "next_epoch")}
