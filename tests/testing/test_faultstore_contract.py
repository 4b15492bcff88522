"""The fault store without faults is an ordinary S3 store: the contract of stores holds on it, through s3fs."""

import pytest

from smalti.storage import Store
from tests.faultstore import FaultStore, Toxic
from tests.stores import StoreContract
from tests.stores.repeated import nightly_but


@pytest.fixture(scope="module")
def own_process():
    with FaultStore(own_process=True) as server:
        yield server


@nightly_but("test_what_is_put_is_got", "test_put_if_absent_never_replaces", "test_list_is_recursive_sorted_and_exact")
@pytest.mark.slow
class TestFaultStoreInAProcess(StoreContract):
    @pytest.fixture
    def store(self, own_process) -> Store:
        own_process.reset()
        return own_process.open("some/prefix")


@pytest.mark.slow
class TestFaultStoreInAThread(StoreContract):
    @pytest.fixture
    def store(self, faults) -> Store:
        return faults.open()


@nightly_but("test_the_probe_tells_the_truth", "test_the_probe_of_conditional_puts_tells_the_truth")
@pytest.mark.slow
class TestFaultStoreThatIgnoresConditions(StoreContract):
    """As several S3 look-alikes do; the probe of the contract finds it out."""

    exclusive_puts = False
    conditional_puts = False

    @pytest.fixture
    def store(self, faults) -> Store:
        faults.plant(Toxic("ignore_precondition"))
        return faults.open()
