"""Ranks on two hosts: their listening addresses, and their behavior if the network is cut in the middle of a
step."""

import re
import time

import pytest
import tiny_run
import two_hosts
from needs import for_cpus, needs_program
from rank_process import Process

TIMEOUT = 2  # parallel.timeout, seconds

pytestmark = [needs_program, for_cpus,
              pytest.mark.skipif(not two_hosts.possible(), reason="no right to make network namespaces")]


def start(hosts, folder, *options):
    command = [tiny_run.BINARY, "train", folder / "run.yaml", "training.micro_batch_size=1", "validation.every=0",
               "logging.tensorboard=false", *options]
    return [Process(host.inside(command), env=two_hosts.environment(rank)) for rank, host in enumerate(hosts)]


def listening(host):
    """The listening addresses, with ports."""
    return {line.split()[3] for line in host.run("ss -Hltn").splitlines()}


def test_two_hosts_train_to_the_bits_of_one_and_listen_to_each_other(tmp_path):
    """Each host resolves its own name to loopback, as Debian configures it."""
    tiny_run.trained(tmp_path / "one", "training.micro_batch_size=1", "validation.every=0", "logging.tensorboard=false")
    with two_hosts.TwoHosts(tmp_path) as hosts:
        ranks = start(hosts, tmp_path / "one", f"output={tmp_path / 'run'}")
        heard = [set(), set()]
        while ranks[0].process.poll() is None:
            for rank, host in enumerate(hosts):
                heard[rank] |= listening(host)
            time.sleep(0.05)
        for rank in ranks:
            assert rank.end(timeout=20)[0] == 0, rank.lines
    assert tiny_run.state(tmp_path / "run", 12) == tiny_run.state(tmp_path / "one/run", 12)
    # The rendezvous and the watcher's port, which waits for the other rank alone, listen on every interface
    # of the first host.
    everywhere = {address for address in heard[0] if address.startswith(("*:", "0.0.0.0:"))}
    assert f"*:{two_hosts.PORT}" in everywhere and len(everywhere) <= 2, heard
    assert len(heard[0]) > len(everywhere) and heard[1]
    assert all(address.startswith("10.9.1.1:") for address in heard[0] - everywhere), heard
    assert all(address.startswith("10.9.1.2:") for address in heard[1]), heard


@pytest.mark.parametrize("cut", [0, 1])
def test_both_sides_of_a_cut_network_name_the_other(tmp_path, cut):
    tiny_run.make(tmp_path)
    with two_hosts.TwoHosts(tmp_path) as hosts:
        ranks = start(hosts, tmp_path, "training.steps=1000000", "checkpoint.every=0", "logging.every=50", "logging.console_every=50",
                      f"parallel.timeout={TIMEOUT}")
        ranks[0].wait_for("step 50")
        hosts[cut].run("ip link set eth0 down")
        begin = time.monotonic()
        for rank, process in enumerate(ranks):
            status, lines = process.end(timeout=TIMEOUT + 5)
            assert status == 5 and time.monotonic() - begin >= TIMEOUT - 1, lines
            named = [line for line in lines if line.startswith("dtopp: error: ")]
            assert len(named) == 1, lines
            assert re.fullmatch(rf"dtopp: error: rank {1 - rank} on node{1 - rank} at step \d+, (waiting in|after) \w+: "
                                rf"silent for {TIMEOUT} s \(stopped, or cut off\), while others wait in \w+", named[0]), named
