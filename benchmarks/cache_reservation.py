"""Memory that `dtopp serve` reserves for caches and never fills, by the rule of dtopp/inference/scheduler.cpp.

A sequence reserves its prompt and max_tokens, in blocks of 64 tokens, until it ends. Paged attention would take a
block when the last one is full. Lengths are lognormal, with the means of ShareGPT that vLLM's paper states (161
tokens of prompt, 338 of answer), at most 1,024 each. Usage: cache_reservation.py [--requests N]
"""

import argparse
import math
import random

BLOCK = 64
MEAN_PROMPT, MEAN_ANSWER, LONGEST, SPREAD = 161, 338, 1024, 1.0


def blocks(tokens):
    return math.ceil(tokens / BLOCK) * BLOCK


def draw(generator, mean):
    length = generator.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)
    return min(max(round(length), 1), LONGEST)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    requests = parser.parse_args().requests
    generator = random.Random(1)
    lengths = [(draw(generator, MEAN_PROMPT), draw(generator, MEAN_ANSWER)) for _ in range(requests)]
    limits = {"max_tokens is the answer's length": lambda answer: answer,
              "max_tokens is twice the answer's length": lambda answer: 2 * answer,
              f"max_tokens is {LONGEST} for all": lambda answer: LONGEST}
    print(f"{'token-steps':40} {'unused':>7} {'paged':>7} {'batch, of paged':>16}")
    for name, limit in limits.items():
        reserved = sum(answer * blocks(prompt + limit(answer)) for prompt, answer in lengths)
        paged = sum(blocks(prompt + step) for prompt, answer in lengths for step in range(1, answer + 1))
        used = sum(answer * prompt + answer * (answer + 1) // 2 for prompt, answer in lengths)
        print(f"{name:40} {1 - used / reserved:7.0%} {1 - used / paged:7.0%} {paged / reserved:16.0%}")


if __name__ == "__main__":
    main()
