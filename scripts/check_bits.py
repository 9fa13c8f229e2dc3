"""Checks that a change keeps every bit of training: it trains small models on the CPU and compares with a record.

usage: check_bits.py record --program P --out FILE        trains with P and writes hashes and metrics
       check_bits.py check --program P --against FILE     trains with P and prints one line per difference
       check_bits.py check --program P --commit C         the same against commit C, which is built if it has no record here

Each run of RUNS trains twelve steps per layout. A record holds the hash of each tensor in the last checkpoint and the
values in metrics.jsonl that no clock changes. Bits depend on the processor, so a record serves one type of machine.

--renamed OLD=NEW allows a name that changed on purpose: metric/..., tensor/..., state/... or config/..., or some whole words of
it, as in mlp.gate=mlp.router. OLD= allows that OLD is gone, and =NEW that NEW is new. Both allow a new value. If OLD is a
configuration key, `record` and `--commit` pass OLD to the program; --old KEY=VALUE passes it one more setting in every run.
@FILE reads arguments from a file, one per line. The keys before routing.experts need --renamed
routing.target_experts=routing.experts and --old routing.top_k=3.
Exit status: 0 no difference, 1 differences, 2 the check cannot run."""

import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXPERT_PARALLEL = "parallel.expert_parallel"

CLOCK = ("time", "throughput/", "memory/", "comm/exposed_share")  # Metrics with these prefixes depend on the clock.
EMA = "ema"  # Prefix of the files with averaged parameters. Their tensors have the names of the parameters.

# The runs: configurations that together use every key, and layouts of ranks.
STEPS = 12

# All configuration keys are here. Sizes are not multiples of a vector, so loop tails run too.
BASE = f"""
    routing.method=dtop_p routing.threshold=0.3 routing.experts=3 routing.kp=0.5 routing.ki=0.5
    loss.load_balance=0.01 loss.dynamic=0.001 loss.router_z=0.001
    optimizer.lr=0.01 optimizer.min_lr=0.001 optimizer.warmup_steps=3 optimizer.grad_clip=0.5
    training.steps={STEPS} training.global_batch_size=16 training.micro_batch_size=2 training.seed=3
    training.precision=fp32 training.device=cpu training.threads=1
    validation.every={STEPS} checkpoint.every=0 logging.tensorboard=false"""
LANGUAGE_MODEL = BASE + """
    model.type=language_model model.hidden_size=52 model.num_layers=3 model.num_heads=2 model.ffn_hidden_size=21
    model.num_experts=8 model.vocab_size=4096 model.sequence_length=37
    data.train=[text] data.validation=[short] validation.tokens=740"""
DIFFUSION = BASE + """
    model.type=diffusion_transformer model.hidden_size=40 model.num_layers=3 model.num_heads=2 model.ffn_hidden_size=21
    model.num_experts=8 model.image_size=10 model.channels=3 model.patch_size=2 model.num_classes=5
    diffusion.condition_dropout=0.3 diffusion.ema_decay=0.9 diffusion.samples_every=0
    data.train=[pixels] data.validation=[pixels] validation.tokens=500"""
DENSE = " model.num_experts=1 model.ffn_hidden_size=84 loss.load_balance=0 loss.dynamic=0 loss.router_z=0"
LATENTS = """ model.channels=4 model.text_size=6 model.text_length=3 model.position=sincos model.qk_norm=none
    diffusion.objective=ddpm diffusion.timesteps=uniform data.train=[latents] data.validation=[latents]"""
# Layouts: ranks, nodes, ranks per expert-parallel group.
EXPERTS = {"1 rank": (1, 1, 1), "2 ranks": (2, 1, 1), "2 x EP 2": (4, 1, 2)}
NO_EXPERTS = {"1 rank": (1, 1, 1), "2 ranks": (2, 1, 1), "4 ranks": (4, 1, 1)}
NODES = {"2 nodes x EP 2": (4, 2, 2)}
MANY = EXPERTS | NODES | {"4 ranks": (4, 1, 1), "EP 4": (4, 1, 4), "2 nodes x 2 ranks": (4, 2, 1)}
RUNS = {
    "top_k": (EXPERTS, LANGUAGE_MODEL + """
        routing.method=top_k routing.experts=3 routing.normalization=fixed model.tie_embeddings=false"""),
    "top_p": (EXPERTS, LANGUAGE_MODEL + """
        routing.method=top_p routing.threshold=0.4 routing.normalization=none routing.renormalize=false
        loss.batch_statistics=global optimizer.schedule=linear"""),
    "dtop_p_pi": (MANY, LANGUAGE_MODEL),
    "dtop_p_solve": (EXPERTS, LANGUAGE_MODEL + """
        routing.controller=solve model.norm=rms optimizer.schedule=wsd optimizer.decay_steps=4
        data.train=[{"path":text,"weight":2},{"path":short,"weight":1}]"""),
    "dtop_p_layer_pi": (EXPERTS, LANGUAGE_MODEL + """
        routing.scope=layer routing.experts=[2,3,4] loss.batch_statistics=global"""),
    "dtop_p_layer_solve": (EXPERTS, LANGUAGE_MODEL + " routing.scope=layer routing.controller=solve loss.router_z_on=normalized"),
    "dtop_p_documents": (EXPERTS, LANGUAGE_MODEL + """
        model.attend_across_documents=false routing.max_experts=4 model.scale_residual_init=true optimizer.schedule=constant
        data.train=[short]"""),
    "dtop_p_bf16": (EXPERTS, LANGUAGE_MODEL + " training.precision=bf16"),
    "dense": (NO_EXPERTS, LANGUAGE_MODEL + DENSE),
    "dit_dtop_p": (EXPERTS | NODES, DIFFUSION),
    "dit_dtop_p_layer_solve": (EXPERTS, DIFFUSION + LATENTS + " routing.scope=layer routing.controller=solve"),
    "dit_top_k": (EXPERTS, DIFFUSION + " routing.method=top_k routing.experts=3"),
    "dit_dense": (NO_EXPERTS, DIFFUSION + DENSE),
}


class CannotRun(Exception):
    pass


def call(*command, timeout=600, **options):
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=timeout, **options)
    if done.returncode != 0:
        raise CannotRun(f"{' '.join(map(str, command[:3]))}: status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def machine():
    """A name for the processor's model and instructions, which select kernels."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    about = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    about.append(os.environ.get("ATEN_CPU_CAPABILITY", ""))
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]


def digest(kind, data):
    return f"{kind} {hashlib.sha256(data).hexdigest()[:32]}"


def tensor_hashes(path):
    """Name and hash of each tensor in a safetensors file. Shapes do not count, so that a list may become a matrix."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    for name, about in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, end = about["data_offsets"]
            yield name, digest(about["dtype"], data[begin + first:begin + end])


def write_tensors(path, tensors):
    """Writes a safetensors file from (name, type, shape, bytes) per tensor."""
    header, body = {}, b""
    for name, kind, shape, data in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def prepare(program, folder):
    """Prepares the data that RUNS names. Returns a hash per tensor and per token file."""
    numbers, images = random.Random(7), 40
    words = "the fog came down at noon and with it a silence that no one had expected in such a town".split()
    documents = (" ".join(numbers.choices(words, k=numbers.randrange(3, 60))) for _ in range(400))
    (folder / "short.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))

    def floats(name, *shape):
        count = images * math.prod(shape)
        return name, "F32", [images, *shape], struct.pack(f"<{count}f", *(numbers.gauss(0, 1) for _ in range(count)))

    labels = "labels", "I64", [images], struct.pack(f"<{images}q", *(i % 5 for i in range(images)))
    write_tensors(folder / "pixels.safetensors", [labels, ("images", "U8", [images, 3, 10, 10], numbers.randbytes(images * 300))])
    write_tensors(folder / "latents.safetensors",
                  [labels, floats("latents", 4, 10, 10), floats("latents_flip", 4, 10, 10), floats("text", 2, 6)])
    tokenizer = ["--tokenizer", ROOT / "assets/tokenizer/english-4k.tokenizer.json"]
    for kind, source, output, *options in (("text", ROOT / "assets/text/novels-validation.jsonl.zst", "text", *tokenizer),
                                           ("text", folder / "short.jsonl", "short", *tokenizer),
                                           ("images", folder / "pixels.safetensors", "pixels"),
                                           ("images", folder / "latents.safetensors", "latents", "--scale", "0.5")):
        call(program, "prepare", kind, source, "--output", output, *options, cwd=folder)
    found = {f"data/{path.parent.name}": digest("ids", path.read_bytes()) for path in folder.glob("*/*.bin")}
    for path in folder.glob("*/*.safetensors"):
        found |= {f"data/{path.parent.name}/{name}": value for name, value in tensor_hashes(path)}
    return found


def start(program, folder, arguments, ranks, nodes):
    """Trains on `ranks` processes. Several nodes are simulated on this machine."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if nodes == 1:
        call(program, "train", "run.yaml", *arguments, *(["--processes", ranks] if ranks > 1 else []), cwd=folder, env=environment)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    per_node = ranks // nodes
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank % per_node), "LOCAL_WORLD_SIZE": str(per_node)} for rank in range(ranks)]
    with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
        list(pool.map(lambda of_rank: call(program, "train", "run.yaml", *arguments, cwd=folder, env=environment | of_rank), own))


def rename(name, pairs):
    for old, new in pairs:
        name = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, name)
    return name


def without(values, names):
    """The values whose name has none of the given words."""
    return {name: value for name, value in values.items() if all(rename(name, [(word, "")]) == name for word in names)}


def train(program, folder, run, layout, pairs, old):
    """Trains one run in one layout. Returns what the gate compares, by name."""
    ranks, nodes, expert_parallel = layout
    output = folder / f"{run}-{ranks}-{nodes}-{expert_parallel}"
    settings = dict(setting.split("=", 1) for setting in f"{RUNS[run][1]} {EXPERT_PARALLEL}={expert_parallel}".split())
    to_old = [(new, old) for old, new in pairs if old and new]
    start(program, folder, [f"{rename(key, to_old)}={value}" for key, value in settings.items()] + [*old, f"output={output}"], ranks, nodes)
    found = {f"config/{key}": value for key, value in settings.items()}
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    for name in sorted({name for line in lines for name in line if not name.startswith(CLOCK)}):
        found[f"metric/{name}"] = [line.get(name) for line in lines]
    checkpoint = max((output / "checkpoints").glob("step-*"))
    for path in sorted(checkpoint.glob("*.safetensors")):
        prefix = "tensor/ema/" if path.name.startswith(EMA) else "tensor/"
        for name, value in tensor_hashes(path):
            if prefix + name in found:
                raise CannotRun(f"{path}: {name} is in another file too")
            found[prefix + name] = value
    for name, value in json.loads((checkpoint / "state.json").read_text()).items():
        if name == "training_data":
            continue  # hashes of the input
        values = value if isinstance(value, list) else [value]
        kind, code = ("F64", "d") if any(isinstance(number, float) for number in values) else ("I64", "q")
        found[f"state/{name}"] = digest(kind, struct.pack(f"<{len(values)}{code}", *values))
    return found


def record(program, only="", pairs=(), old=()):
    program = pathlib.Path(program).resolve()
    jobs = [(run, name, layout) for run, (layouts, _) in RUNS.items() for name, layout in layouts.items()
            if re.search(only, f"{run}, {name}")]
    if not jobs:
        raise CannotRun(f"--only {only}: no run has such a name")
    jobs.sort(key=lambda job: -job[2][0])  # Start the longest first.
    with tempfile.TemporaryDirectory(prefix="dtopp-bits-") as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folder = pathlib.Path(scratch)
        runs = {"data": prepare(program, folder)}
        (folder / "run.yaml").write_text("name: bits\n")
        futures = {f"{run}, {name}": pool.submit(train, program, folder, run, layout, pairs, old) for run, name, layout in jobs}
        concurrent.futures.wait(futures.values())
        failed = [f"{run}: {error}" for run, future in futures.items() if (error := future.exception())]
        if failed:
            raise CannotRun("\n".join(failed))
        runs |= {run: future.result() for run, future in futures.items()}
    return {"machine": machine(), "runs": runs}


def record_commit(commit, pairs, old):
    """Reads the record of a commit. Builds its program and makes the record if there is none."""
    sha = call("git", "rev-parse", "--short=12", f"{commit}^{{commit}}", cwd=ROOT)
    folder = ROOT / "build/bits"
    path, tree = folder / f"{sha}-{machine()}.json", folder / sha
    if not path.exists():
        print(f"building {sha} in {tree}", file=sys.stderr)
        if not tree.exists():  # An interrupted build resumes.
            call("git", "worktree", "add", "--force", "--detach", tree, sha, cwd=ROOT)
            (tree / ".venv").symlink_to((ROOT / ".venv").resolve())
        call("cmake", "--preset", "release", cwd=tree)
        call("cmake", "--build", "build/release", "--target", "dtopp", cwd=tree, timeout=7200)
        path.write_text(json.dumps(record(tree / "build/release/bin/dtopp", pairs=pairs, old=old), indent=1))
        call("git", "worktree", "remove", "--force", tree, cwd=ROOT)
    return json.loads(path.read_text())


def differences(before, now, pairs):
    """One line per value that differs, is missing or is new."""
    renamed = [pair for pair in pairs if all(pair)]
    for run in now:
        if run not in before:
            yield f"{run}: the record has no such run"
            continue
        kept = without(before[run], [old for old, new in pairs if not new])
        known = {rename(name, renamed): value for name, value in kept.items()}
        values = without(now[run], [new for old, new in pairs if not old])
        for name in sorted(known | values):
            old, new = known.get(name), values.get(name)
            if old == new:
                continue
            step = ""
            if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
                at = next(i for i, pair in enumerate(zip(old, new)) if pair[0] != pair[1])
                old, new, step = old[at], new[at], f" in line {at + 1}"
            shown = ["nothing" if value is None else str(value)[:60] for value in (old, new)]
            yield f"{run}: {name}{step}: {shown[0]} before, {shown[1]} now"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], fromfile_prefix_chars="@")
    parser.add_argument("verb", choices=["record", "check"])
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="record: the file to write")
    parser.add_argument("--against", type=pathlib.Path, help="check: the record to compare with")
    parser.add_argument("--commit", help="check: a commit to compare with")
    parser.add_argument("--only", default="", metavar="REGEX", help="only runs that match, for example 'dit.*EP 2'")
    parser.add_argument("--renamed", action="extend", nargs="+", default=[], metavar="OLD=NEW", help="allow this change of a name")
    parser.add_argument("--old", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="record, --commit: a setting for the program")
    options = parser.parse_args()
    renamed = [pair for pair in options.renamed if pair and not pair.startswith("#")]
    if any("=" not in pair for pair in renamed):
        parser.error("--renamed: write OLD=NEW")
    pairs = [pair.partition("=")[::2] for pair in renamed]
    if options.verb == "record":
        if not options.out:
            parser.error("record: add --out FILE")
        options.out.write_text(json.dumps(record(options.program, options.only, pairs, options.old), indent=1))
        return 0
    if bool(options.against) == bool(options.commit):
        parser.error("check: add either --against FILE or --commit C")
    before = json.loads(options.against.read_text()) if options.against else record_commit(options.commit, pairs, options.old)
    if before["machine"] != machine():
        raise CannotRun("the record comes from another type of processor: make one here with --commit")
    now = record(options.program, options.only)["runs"]
    lines = list(differences(before["runs"], now, pairs))
    print("\n".join(lines) or f"{len(now) - 1} runs, {sum(map(len, now.values()))} names: no difference")
    return 1 if lines else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CannotRun, OSError, subprocess.TimeoutExpired) as error:
        print(f"check_bits.py: {error}", file=sys.stderr)
        sys.exit(2)
