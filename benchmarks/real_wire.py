"""Runs `dtopp train` on two hosts, which are network namespaces of this machine with an interface of 25 to
1000 Mbit/s or a delay of 5 ms in each direction. Reports the step, rank 0's sent bytes and waiting time from
metrics.jsonl, and the kernel's counters of its interface. Needs root.

Prints one JSON line per case.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python/support"))
import tiny_run  # noqa: E402
import two_hosts  # noqa: E402

MODEL = {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 64, "num_experts": 16, "vocab_size": 256,
         "sequence_length": 128}
BATCH = 16
# Bytes of IP and TCP headers with time stamps, and of Ethernet headers, which a TUN device does not have.
HEADER, ETHERNET = 20 + 32, 14
# The counters of a run minus those of a shorter run, which removes the traffic before the first and after the
# last step.
STEPS = (6, 18)


def write_config(folder):
    tiny_run.write_tokens(folder / "tokens.npy", 200_000, seed=1)
    (folder / "run.yaml").write_text(yaml.safe_dump({
        "model": MODEL, "routing": {"method": "dtop_p", "experts": [4]},
        "data": {"train": [str(folder / "tokens.npy")]},
        "training": {"global_batch_size": BATCH, "micro_batch_size": 8, "precision": "fp32", "threads": 1},
        "validation": {"every": 0}, "checkpoint": {"every": 0}, "logging": {"tensorboard": False}}))
    return folder / "run.yaml"


def counted(host):
    """Returns the bytes and packets that the host's interface has sent."""
    sent = json.loads(host.run("ip -s -j link show eth0"))[0]["stats64"]["tx"]
    return sent["bytes"], sent["packets"]


def train(hosts, config, output, steps):
    """Returns the lines of metrics.jsonl and the kernel's counts for the first host."""
    before = counted(hosts[0])
    command = [tiny_run.BINARY, "train", config, f"training.steps={steps}", "optimizer.warmup_steps=1", f"output={output}"]
    ranks = [subprocess.Popen(host.inside(command), env=two_hosts.environment(rank), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) for rank, host in enumerate(hosts)]
    errors = [rank.communicate()[1] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("".join(errors))
    return tiny_run.metrics(output), [after - start for after, start in zip(counted(hosts[0]), before)]


def measure(folder, config, name, **wire):
    with two_hosts.TwoHosts(folder, **wire) as hosts:
        (short, few), (lines, many) = (train(hosts, config, folder / f"{name}-{steps}", steps) for steps in STEPS)
    sent = sum(line["comm/bytes"] for line in lines) - sum(line["comm/bytes"] for line in short)
    steps, tokens = STEPS[1] - STEPS[0], BATCH * MODEL["sequence_length"]
    kernel, packets = ((after - before) / steps for after, before in zip(many, few))
    payload = kernel - packets * (HEADER + (0 if "delay" in wire else ETHERNET))
    seconds = statistics.median(tokens / line["throughput/tokens_per_second"] for line in lines[2:])
    case = {"wire": name, "step_seconds": round(seconds, 3),
            "exposed_share": round(statistics.median(line["comm/exposed_share"] for line in lines[2:]), 3),
            "sent_bytes": round(sent / steps), "kernel_bytes": round(kernel), "kernel_packets": round(packets),
            "kernel_ratio": round(kernel * steps / sent, 4), "payload_ratio": round(payload * steps / sent, 4),
            "load": round(os.getloadavg()[0], 1)}
    if "mbit" in wire:
        case["wire_seconds"] = round(kernel * 8e-6 / wire["mbit"], 3)
    print(json.dumps(case), flush=True)


def main():
    if not two_hosts.possible():
        sys.exit("real_wire.py: no permission to create network namespaces; run it as root")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        config = write_config(folder)
        measure(folder, config, "unlimited")
        for mbit in (1000, 400, 100, 25):
            measure(folder, config, f"{mbit} Mbit", mbit=mbit)
        measure(folder, config, "5 ms", delay=0.005)


if __name__ == "__main__":
    main()
