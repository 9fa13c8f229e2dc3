"""The other programs of decode.py. Reads {"prompts": [[id, …], …], "tokens": n} from a line of standard input and
prints the seconds of the prefill and of each step of greedy decoding as a JSON line."""

import argparse
import json
import pathlib
import sys
import time

CONTEXT = 640  # tokens per sequence


class Transformers:
    """OlmoeForCausalLM in bf16 with a static cache. torch.compile compiles the step of decoding, once per batch and
    implementation of the experts; a step's time is that of the faster implementation."""

    def __init__(self, folder, threads):
        import torch
        import transformers
        torch.set_num_threads(threads)
        torch._dynamo.config.cache_size_limit = 32
        self.torch, self.cache_class = torch, transformers.StaticCache
        self.model = transformers.OlmoeForCausalLM.from_pretrained(folder / "hf", dtype=torch.bfloat16).eval()
        self.caches, self.compiled = {}, {}

    def step(self, cache, ids, begin):
        positions = self.torch.arange(begin, begin + ids.shape[1])
        return self.model(input_ids=ids, past_key_values=cache, position_ids=positions[None].expand(len(ids), -1), use_cache=True,
                          logits_to_keep=1).logits[:, -1].argmax(-1)[:, None]

    def run(self, prompts, tokens):
        torch = self.torch
        best = {"prefill": float("inf"), "steps": [float("inf")]}
        for implementation in ("grouped_mm", "batched_mm"):
            if implementation == "batched_mm" and len(prompts) > 1:
                continue  # it copies the weights of each token's experts
            self.model.set_experts_implementation(implementation)
            key = implementation, len(prompts)
            if key not in self.compiled:
                self.caches[key] = self.cache_class(config=self.model.config, max_cache_len=CONTEXT)
                self.compiled[key] = torch.compile(self.step, dynamic=False)
            cache, step = self.caches[key], self.compiled[key]
            cache.reset()
            ids = torch.tensor(prompts)
            start = time.perf_counter()
            next_ids = self.step(cache, ids, 0)
            prefill, steps = time.perf_counter() - start, []
            for t in range(tokens):
                start = time.perf_counter()
                next_ids = step(cache, next_ids, torch.tensor(ids.shape[1] + t))
                steps.append(time.perf_counter() - start)
            best = {"prefill": min(prefill, best["prefill"]), "steps": min(steps, best["steps"], key=lambda s: sorted(s)[len(s) // 2])}
        return best


class LlamaCpp:
    """llama.cpp with the weights in bf16 and its defaults (keys and values in fp16)."""

    def __init__(self, folder, threads):
        import llama_cpp
        self.api, self.threads = llama_cpp, threads
        llama_cpp.llama_backend_init()
        file = folder / "bf16.gguf"
        if not file.exists():
            how = llama_cpp.llama_model_quantize_default_params()
            how.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
            if llama_cpp.llama_model_quantize(str(folder / "fp32.gguf").encode(), str(file).encode(), how) != 0:
                sys.exit("llama.cpp: cannot convert the weights to bf16")
            (folder / "fp32.gguf").unlink()
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, context, sequences, begin):
        """Computes the next ids of all sequences; returns the likeliest id after each."""
        import numpy as np
        api, length = self.api, len(sequences[0])
        batch = api.llama_batch_init(len(sequences) * length, 0, 1)
        for s, ids in enumerate(sequences):
            for t, token in enumerate(ids):
                i = s * length + t
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, begin + t, 1, s
                batch.logits[i] = t + 1 == length
        batch.n_tokens = len(sequences) * length
        if api.llama_decode(context, batch) != 0:
            sys.exit("llama.cpp: llama_decode failed")
        rows = [np.ctypeslib.as_array(api.llama_get_logits_ith(context, (s + 1) * length - 1), (self.vocabulary,))
                for s in range(len(sequences))]
        likeliest = [[int(row.argmax())] for row in rows]
        api.llama_batch_free(batch)
        return likeliest

    def run(self, prompts, tokens):
        how = self.api.llama_context_default_params()
        how.n_ctx, how.n_seq_max = CONTEXT * len(prompts), len(prompts)
        how.n_batch = max(len(prompts) * len(prompts[0]), 64)
        how.n_threads = how.n_threads_batch = self.threads
        context = self.api.llama_init_from_model(self.model, how)
        start = time.perf_counter()
        ids = self.decode(context, prompts, 0)
        prefill, steps = time.perf_counter() - start, []
        for t in range(tokens):
            start = time.perf_counter()
            ids = self.decode(context, ids, len(prompts[0]) + t)
            steps.append(time.perf_counter() - start)
        self.api.llama_free(context)
        return {"prefill": prefill, "steps": steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["transformers", "llama.cpp"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    side = (Transformers if args.kind == "transformers" else LlamaCpp)(args.folder, args.threads)
    answers = sys.stdout
    sys.stdout = sys.stderr
    print("ready", file=answers, flush=True)
    import contextlib
    no_gradients = side.torch.no_grad() if args.kind == "transformers" else contextlib.nullcontext()
    with no_gradients:
        for line in sys.stdin:
            print(json.dumps(side.run(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
