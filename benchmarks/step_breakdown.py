"""Shows the parts of a training step's time and the machine's limits: `dtopp train --profile` with training_step.py's case (hidden 512,
8 layers, 64 experts of 256, 8 active, vocabulary 50,432, 4 x 1024 tokens), with 8 x 4096 tokens (long_sequence), the same with documents
of 500 tokens that attend only within themselves (long_documents), or with a case of diffusion_step.py. Prints the table, and one JSON
line: the median tokens/s, and by part the GFLOP, MB, limit and time in ms, and lost share in percent.
"""

import argparse
import json
import pathlib
import signal
import statistics
import sys
import tempfile

import diffusion_step
import training_side
from training_step import FULL

LONG = FULL | {"sequence_length": 4096, "batch": 8, "micro_batch": 2}
LANGUAGE = {"training_step": FULL, "long_sequence": LONG, "long_documents": LONG}
DOCUMENT = 500  # mean number of tokens


def start(args, folder):
    options = ["--profile", str(args.steps + 1)]
    if args.case in LANGUAGE:
        within = args.case == "long_documents"
        if within:
            options += ["model.attend_across_documents=false", "data.end_of_text=0"]
        return training_side.start_dtopp(LANGUAGE[args.case], "dtop_p", args.precision, args.threads, folder,
                                         equal=1 / DOCUMENT if within else 0.0, options=options)
    return diffusion_step.start_dtopp(diffusion_step.CASES[args.case], "dtop_p", args.precision, args.threads, folder, options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="training_step", choices=[*LANGUAGE, *diffusion_step.CASES])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "run"
        with start(args, folder) as side:
            side.process.send_signal(signal.SIGCONT)
            if side.process.wait():
                sys.exit(side.log.with_suffix(".err").read_text()[-2000:])
            steps = side.read()[1:]
        table = (folder / "run/profile.txt").read_text()
    print(table, end="", file=sys.stderr)
    rows = [line.rsplit(maxsplit=5) for line in table.splitlines()[2:]]
    print(json.dumps({"case": "step_breakdown " + args.case, "precision": args.precision, "threads": args.threads,
                      "tokens_per_second": round(statistics.median(s["throughput/tokens_per_second"] for s in steps), 1),
                      "limits": table.splitlines()[0].split("limits: ")[1],
                      "parts": {name.strip(): [float(number) for number in numbers] for name, *numbers in rows}}))


if __name__ == "__main__":
    main()
