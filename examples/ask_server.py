"""Asks `dtopp serve` for a text with several numbers of experts, through OpenAI's client.

Usage: ask_server.py [PROMPT] [--url URL] [--key KEY] [--experts N...] [--tokens N]
"""

import argparse
import sys

from openai import APIConnectionError, OpenAI


def stream(client, **request):
    """Prints a text as it comes. Returns the experts of each token, and the answer's usage."""
    experts, usage = [], None
    for part in client.completions.create(stream=True, stream_options={"include_usage": True}, **request):
        usage = part.usage or usage
        for choice in part.choices:
            print(choice.text, end="", flush=True)
            experts += choice.active_experts
    print()
    return experts, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="The old man")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", default="none", help="the first line of the server's --token-file")
    parser.add_argument("--experts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=40)
    args = parser.parse_args()
    client = OpenAI(base_url=args.url.rstrip("/") + "/v1", api_key=args.key)
    try:
        model = client.models.list().data[0]
    except APIConnectionError:
        sys.exit(f"{args.url}: no server answers; start one with dtopp serve RUN")
    for target in args.experts:
        experts, usage = stream(client, model=model.id, prompt=args.prompt, max_tokens=args.tokens, seed=1,
                                extra_body={"target_experts": target})
        print(f"target {target}: {usage.active_experts:.2f} of {model.num_experts} experts per token, "
              f"{usage.completion_tokens} tokens of {min(experts):.1f} to {max(experts):.1f}")


if __name__ == "__main__":
    main()
