"""How many hosts read a run, and the canonical nodes that fit a number of hosts."""

import numpy as np
import pytest

from smalti.order import fitted_canonical_nodes, hosts_of_run, plan_epoch


@pytest.mark.parametrize("nodes", [1, 6, 8])
@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 8, 12, 16])
def test_the_hosts_of_a_run_are_those_that_read_it(nodes, hosts):
    plan = plan_epoch(np.full(40, 100), seed=1, epoch=0, canonical_nodes=nodes)
    readers = [run for host in range(hosts) for run in plan.runs_of_host(host, hosts)]
    assert {readers.count(run) for run in range(nodes)} == {hosts_of_run(nodes, hosts)}


@pytest.mark.parametrize(("hosts", "nodes"), [(1, 64), (12, 72), (48, 96), (64, 64), (96, 96), (1024, 1024)])
def test_fitted_nodes_are_read_by_one_host_each(hosts, nodes):
    assert fitted_canonical_nodes(hosts) == nodes
    assert hosts_of_run(nodes, hosts) == 1


@pytest.mark.parametrize(("least", "nodes"), [(1, 12), (2, 12), (12, 12), (13, 24), (100, 108)])
def test_fitted_nodes_of_a_small_set_are_not_more_than_it_needs(least, nodes):
    assert fitted_canonical_nodes(12, least) == nodes
