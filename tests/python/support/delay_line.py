"""A delaying network between two namespaces: a TUN device in each, and a thread that forwards packets late."""

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
