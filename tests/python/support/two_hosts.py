"""Simulates two hosts on this machine: network namespaces with their own host names, joined by a veth pair or by a delaying network: a
TUN device in each, and a thread that forwards packets late. Needs root."""

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 9000


def enter(namespace):
    """Moves the calling thread to a network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def open_device(process, name, address):
    """Opens and enables a TUN device in the process's namespace. The returned descriptor reads the packets
    sent to it."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    namespace = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    try:
        enter(namespace)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)  # it belongs to the namespace of this thread
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
        for line in (f"address add {address}/24 dev {name}", f"link set {name} mtu {MTU} up"):
            subprocess.run(["ip", *line.split()], check=True)
    finally:
        enter(home)
        os.close(namespace)
        os.close(home)
    return device


class DelayLine:
    """Forwards packets between two device descriptors, each `seconds` after it was read."""

    def __init__(self, devices, seconds):
        self.devices = devices
        self.seconds = seconds
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()

    def carry(self):
        other = dict(zip(self.devices, reversed(self.devices)))
        waiting, count = [], 0
        while not self.ended.is_set():
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(waiting)
                os.write(device, packet)
            pause = min(0.1, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.1
            for device in select.select(self.devices, [], [], pause)[0]:
                count += 1
                heapq.heappush(waiting, (time.monotonic() + self.seconds, count, other[device], os.read(device, 70000)))

    def close(self):
        self.ended.set()
        self.thread.join()
        for device in self.devices:
            os.close(device)


ADDRESSES = ("10.9.1.1", "10.9.1.2")
NAMES = ("node0", "node1")
PORT = 29500


def possible():
    """Whether this process may create the namespaces."""
    test = "ip link add eth0 type veth peer name eth1"
    return subprocess.run(["unshare", "--net", "--uts", "--mount", "sh", "-c", test], capture_output=True).returncode == 0


class Host:
    """One host. It ends when it is closed or when this process ends."""

    def __init__(self, name, hosts_file):
        script = f"hostname {name} && mount --bind {hosts_file} /etc/hosts && ip link set lo up && echo up && read end"
        self.process = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", script], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == "up\n"

    def inside(self, command):
        """The argument list that runs `command` on the host. The command replaces the nsenter process."""
        return ["nsenter", "--target", str(self.process.pid), "--net", "--uts", "--mount", f"--wd={os.getcwd()}", "--",
                *map(str, command)]

    def run(self, command):
        """Returns a command's output."""
        return subprocess.run(self.inside(command.split()), check=True, capture_output=True, text=True).stdout

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class TwoHosts:
    """hosts[0] and hosts[1], whose interface is eth0. `mbit` limits eth0's rate in millions of bits per
    second. `delay` instead delays every packet by that many seconds."""

    def __init__(self, folder, mbit=None, delay=None):
        self.hosts, self.line = [], None
        for name in NAMES:
            # As on Debian, a host resolves its own name to loopback.
            known = {NAMES[i]: "127.0.1.1" if NAMES[i] == name else ADDRESSES[i] for i in range(2)}
            file = folder / f"hosts-{name}"
            file.write_text("127.0.0.1 localhost\n" + "".join(f"{known[host]} {host}\n" for host in NAMES))
            self.hosts.append(Host(name, file))
        if delay:
            devices = [open_device(host.process.pid, "eth0", address) for host, address in zip(self.hosts, ADDRESSES)]
            self.line = DelayLine(devices, delay)
        else:
            self.join_by_cable(mbit)

    def join_by_cable(self, mbit):
        self.hosts[0].run(f"ip link add eth0 type veth peer name eth0 netns {self.hosts[1].process.pid}")
        for host, address in zip(self.hosts, ADDRESSES):
            host.run(f"ip address add {address}/24 dev eth0")
            host.run("ip link set eth0 up")
            if mbit:
                host.run(f"tc qdisc add dev eth0 root tbf rate {mbit}mbit burst 64kb latency 200ms")

    def __enter__(self):
        return self.hosts

    def __exit__(self, *error):
        if self.line:
            self.line.close()
        for host in self.hosts:
            host.close()


def environment(rank):
    """The environment that torchrun sets for the only rank of a host."""
    return os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                         "MASTER_ADDR": NAMES[0], "MASTER_PORT": str(PORT)}
