"""Writes the seconds that a run spent in training steps, without validations and checkpoints.

usage: training_seconds.py RUN RESULT.json    after a study's run: {"seconds": …}"""

import json
import pathlib
import sys

run, result = map(pathlib.Path, sys.argv[1:])
seconds, before = 0.0, 0
for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
    if "throughput/tokens_per_second" in line:
        seconds += (line["tokens"] - before) / line["throughput/tokens_per_second"]
        before = line["tokens"]
result.write_text(json.dumps({"seconds": round(seconds, 2)}) + "\n")
