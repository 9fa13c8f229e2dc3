"""Trains train_gpt.py's model with several processes, replicated or sharded.

Usage: torchrun --nproc-per-node 2 two_processes.py [--steps N] [--fsdp]
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from train_gpt import GPT, SAMPLE, batch, load

import dtopp


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--fsdp", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = shard(GPT()) if options.fsdp else DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    controller = dtopp.ThresholdController(model, controller="solve")  # counts the tokens of all processes
    controller.attach(optimizer)
    text, generator = load(SAMPLE), torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, options.steps + 1):
        loss = model(batch(text, generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == options.steps:
            dist.all_reduce(loss := loss.detach() / dist.get_world_size())
            numbers = controller.metrics()
            if dist.get_rank() == 0:
                active = numbers["moe/active_experts"]
                print(f"step {step}  loss {loss.item():.3f}  experts {active:.2f} of 4", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
