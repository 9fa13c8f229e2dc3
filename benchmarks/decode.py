"""Times prefill and decoding of dtopp against transformers (static cache, torch.compile) and llama.cpp on the same
machine and weights: an OLMoE of hidden 1024, 8 layers, 64 experts of 512, 8 active, vocabulary 50,432, with random
weights; batches of 1, 8 and 32 sequences, greedy.

Each side is a process of its own that waits while another one computes: `dtopp serve`, and decode_side.py for the
others. The median over rounds counts. Prints one JSON line per side and batch: tokens/s, and the limit of decoding,
the bytes of the weights that a step reads divided by the measured bandwidth. A last line per precision of dtopp has
its milliseconds per token along one long text.
"""

import argparse
import contextlib
import http.client
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from training_side import BINARY, HERE

FULL = {"hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50432, "max_position_embeddings": 4096}
QUICK = FULL | {"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
PROMPT = {1: 512, 8: 128, 32: 64}  # tokens per sequence
TOKENIZER = HERE.parent / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


def make_model(case, folder):
    """Writes the random model for all sides, unless the folder has it."""
    if (folder / "done").exists():
        return
    from transformers import OlmoeConfig, OlmoeForCausalLM
    torch.manual_seed(1)
    # The end-of-text id is never the likeliest of random logits in practice; a text that ends early is an error.
    config = OlmoeConfig(**case, tie_word_embeddings=False, eos_token_id=0, pad_token_id=1, bos_token_id=None)
    OlmoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "hf", max_shard_size="100GB")
    (folder / "hf/tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    subprocess.run([BINARY, "convert", "from-hf", folder / "hf", folder / "checkpoint"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([BINARY, "convert", "to-gguf", folder / "checkpoint", folder / "fp32.gguf"], check=True, stdout=subprocess.DEVNULL)
    (folder / "done").write_text("")


class Side:
    """A process that computes only while it is asked."""

    def __init__(self, command, **streams):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **streams)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Peer(Side):
    """decode_side.py: answers a line with a line."""

    def __init__(self, kind, folder, threads):
        command = [sys.executable, HERE / "decode_side.py", kind, folder, "--threads", str(threads)]
        with open(folder / f"{kind}.err", "w") as errors:
            super().__init__(command, stdin=subprocess.PIPE, stderr=errors)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"{kind}: {(folder / f'{kind}.err').read_text()[-2000:]}")

    def seconds(self, prompts, tokens):
        """Seconds of the prefill, and of a step of decoding."""
        self.process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["prefill"], statistics.median(answer["steps"])


class Dtopp(Side):
    """`dtopp serve`. A step's time is the difference of a long and a short request."""

    def __init__(self, precision, folder, threads):
        command = [BINARY, "serve", folder / "checkpoint", "--port", "0", "--threads", str(threads)]
        command += ["--precision", precision]
        super().__init__(command)
        address = self.process.stdout.readline()
        if not address:
            sys.exit("dtopp serve ended")
        self.port = int(address.rsplit(":", 1)[1].strip().strip("/"))

    def request(self, prompts, tokens, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        body = {"prompt": prompts, "max_tokens": tokens, "temperature": 0} | more
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(answer.read().decode())
        return answer

    def total(self, prompts, tokens):
        start = time.perf_counter()
        answer = json.loads(self.request(prompts, tokens).read())
        elapsed = time.perf_counter() - start
        if answer["usage"]["completion_tokens"] != tokens * len(prompts):
            sys.exit("a text ended early; use another seed")
        return elapsed

    def seconds(self, prompts, tokens):
        prefill = self.total(prompts, 1)
        return prefill, (self.total(prompts, tokens + 1) - prefill) / tokens

    def token_times(self, prompt, tokens):
        """The time at which each token was received."""
        times = []
        for line in self.request([prompt], tokens, stream=True):
            if line.startswith(b"data: {"):
                times += [time.perf_counter()] * len(json.loads(line[6:])["choices"][0]["active_experts"])
        return times


def bandwidth(threads):
    """Bytes per second that `threads` threads read from large pages, the best of several passes over 1 GiB."""
    torch.set_num_threads(threads)
    memory = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    numbers = torch.frombuffer(memory, dtype=torch.float32).fill_(1)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - start)
    return numbers.numel() * 4 / best


def bytes_per_step(case, batch, width):
    """The bytes of the weights that a step of `batch` tokens reads, each weight once, if tokens choose their experts
    independently."""
    D, E = case["hidden_size"], case["num_experts"]
    experts = E * (1 - (1 - case["num_experts_per_tok"] / E) ** batch)
    layer = width * (4 * D * D + experts * 3 * D * case["intermediate_size"]) + 4 * E * D  # the router is fp32
    return case["num_hidden_layers"] * layer + width * case["vocab_size"] * D


def open_sides(args, folder, running):
    sides = {}
    for precision in args.precisions:
        sides[f"dtopp {precision}"] = Dtopp(precision, folder, args.threads)
        running.callback(sides[f"dtopp {precision}"].stop)
    for kind in args.peers:
        if kind == "llama.cpp":
            try:
                import llama_cpp  # noqa: F401
            except ImportError:
                print("decode: llama.cpp is left out: pip install llama-cpp-python", file=sys.stderr)
                continue
        sides[kind] = Peer(kind, folder, args.threads)
        running.callback(sides[kind].stop)
    return sides


def measure(case, args, folder, running):
    sides = open_sides(args, folder, running)
    rate = bandwidth(args.threads)
    random = np.random.default_rng(args.seed)
    for batch in args.batches:
        prompts = random.integers(2, 50000, (batch, PROMPT[batch])).tolist()
        tokens = max(args.tokens // batch, 8)
        seconds = {name: [] for name in sides}
        for turn in range(args.rounds + 1):  # the first one warms up and compiles
            for name, side in sides.items():
                taken = side.seconds(prompts, tokens if turn else 2)
                if turn:
                    seconds[name].append(taken)
        for name, taken in seconds.items():
            prefill, step = (statistics.median(part) for part in zip(*taken))
            limit = batch * rate / bytes_per_step(case, batch, 4 if name == "dtopp fp32" else 2)
            print(json.dumps({"case": "decode" + (" quick" if args.quick else ""), "side": name, "batch": batch, "threads": args.threads,
                              "prefill_tokens_per_second": round(batch * PROMPT[batch] / prefill, 1),
                              "decode_tokens_per_second": round(batch / step, 1),
                              "limit_tokens_per_second": round(limit, 1), "share_of_limit": round(batch / step / limit, 3),
                              "bandwidth": round(rate / 1e9, 2)}), flush=True)
    for name, side in sides.items():
        if name.startswith("dtopp") and args.long > 0:
            times = side.token_times(prompts[0][:8], args.long)
            window = min(100, args.long // 4)
            along = {at: round(1e3 * (times[at + window] - times[at]) / window, 3) for at in (10, args.long // 2, len(times) - window - 1)}
            print(json.dumps({"case": "decode long", "side": name, "milliseconds_per_token_from": along}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, to try the benchmark itself")
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the model for the next run")
    parser.add_argument("--precisions", nargs="*", default=["fp32", "bf16"], help="of dtopp; the others compute in bf16")
    parser.add_argument("--peers", nargs="*", default=["transformers", "llama.cpp"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], choices=PROMPT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="tokens to decode per turn, of all sequences; at least 8 steps")
    parser.add_argument("--long", type=int, default=2000, help="tokens of the long text; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    case = QUICK if args.quick else FULL
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with contextlib.ExitStack() as running:
        folder = args.folder or pathlib.Path(running.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        make_model(case, folder)
        measure(case, args, folder, running)


if __name__ == "__main__":
    main()
