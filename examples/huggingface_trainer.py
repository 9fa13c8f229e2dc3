"""Trains a small Llama whose feed-forward layers are dtopp.MoE with Hugging Face's Trainer, with gradient
accumulation and activation checkpointing. Needs transformers 5.23. Usage: huggingface_trainer.py OUTPUT [--steps N]
"""

import argparse
import json
import pathlib

import torch
from train_gpt import LENGTH, SAMPLE, load
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import dtopp

ACCUMULATED = 2


class ControllerCallback(TrainerCallback):
    """Updates the threshold after each optimizer step and saves it beside the model's checkpoints."""

    def __init__(self, controller):
        self.controller = controller

    def on_train_begin(self, args, state, control, **_):
        dtopp.set_loss_scale(1 / args.gradient_accumulation_steps)
        path = pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}/controller.json"
        if state.global_step > 0:
            self.controller.load_state_dict(json.loads(path.read_text()))

    def on_optimizer_step(self, args, state, control, **_):
        self.controller.step()

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            logs |= {name: value for name, value in self.controller.metrics().items() if "layer" not in name}

    def on_save(self, args, state, control, **_):
        path = pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}/controller.json"
        path.write_text(json.dumps(self.controller.state_dict()))


class Windows(torch.utils.data.Dataset):
    def __init__(self, text):
        self.text = text

    def __len__(self):
        return len(self.text) // LENGTH

    def __getitem__(self, i):
        ids = self.text[i * LENGTH : (i + 1) * LENGTH]
        return {"input_ids": ids, "labels": ids}


def make_model():
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, max_position_embeddings=LENGTH)
    model = LlamaForCausalLM(config)
    for block in model.model.layers:
        block.mlp = dtopp.MoE(config.hidden_size, ffn_hidden_size=64, num_experts=16, target_experts=4)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(1)
    model = make_model()
    controller = dtopp.ThresholdController(model, controller="solve")
    arguments = TrainingArguments(
        options.output, max_steps=options.steps, per_device_train_batch_size=8, learning_rate=3e-3,
        gradient_accumulation_steps=ACCUMULATED, activation_checkpointing=True, logging_steps=10, seed=1,
        save_steps=options.steps, report_to="none", disable_tqdm=True)
    has_checkpoint = any(pathlib.Path(options.output).glob("checkpoint-*"))
    trainer = Trainer(model, arguments, train_dataset=Windows(load(SAMPLE)),
                      callbacks=[ControllerCallback(controller)])
    trainer.train(resume_from_checkpoint=has_checkpoint)


if __name__ == "__main__":
    main()
