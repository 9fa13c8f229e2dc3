"""Computes the scores of `dtopp evaluate` with lm-eval (docs/how-to/hugging-face.md):

    dtopp convert lm-eval TASKS --data DIR
    python -m dtopp.lm_eval --model dtopp_hf --include_path TASKS --tasks dtopp --model_args pretrained=FOLDER,trust_remote_code=True

This is lm-eval's own command line with one more model class.
"""

import dataclasses
import json
import sys
from typing import Any

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ModuleNotFoundError as error:
    raise ImportError(f"dtopp.lm_eval: {error}; pip install lm-eval accelerate transformers") from None

__all__ = ["DtoppHFLM", "LogLikelihood", "PromptTooLong"]

# Separates the examples from the item, as in the tasks' documents.
SEPARATOR = "\x1e"
# The limit for a prompt with its continuation, whatever the model's own length.
MAX_PROMPT_TOKENS = 2048
# Tokens of a generated answer beyond the longest correct answer.
SPARE_ANSWER_TOKENS = 10


class PromptTooLong(ValueError):
    """A prompt that is longer than the model's sequences."""


class LogLikelihood(float):
    """The log-likelihood of a continuation, in nats, with the number of its tokens."""

    tokens: int


def _log_likelihood(value: float, tokens: int) -> LogLikelihood:
    log_p = LogLikelihood(value)
    log_p.tokens = tokens
    return log_p


@register_model("dtopp_hf")
class DtoppHFLM(HFLM):  # type: ignore[misc]
    """Hugging Face's models, with the requests of `dtopp evaluate`.

    For a task of `dtopp convert lm-eval`, examples, item and continuation are tokenized one by one and
    truncated on the left to 2,048 tokens. `budget_from`, the path of a task's documents, determines the most
    tokens of an answer. Log-likelihoods are `LogLikelihood`s. HFLM handles other requests.

    Raises:
        PromptTooLong: a prompt of those tasks does not fit the model.
    """

    def _encode(self, text: str, room: int) -> list[int]:
        """Returns the last ids of the parts of a text that leave space for `room` ids."""
        ids: list[int] = []
        for part in text.split(SEPARATOR):
            ids += self.tok_encode(part, add_special_tokens=False)
        ids = ids[-(MAX_PROMPT_TOKENS - room):]
        if len(ids) + room > self.max_length:
            raise PromptTooLong(f"a prompt takes {len(ids) + room} tokens, the model's sequences have {self.max_length}; "
                                "leave its task out, or train with longer sequences")
        return ids

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if SEPARATOR not in context:
            pair: tuple[list[int], list[int]] = super()._encode_pair(context, continuation)
            return pair
        ids: list[int] = self.tok_encode(continuation, add_special_tokens=False)
        return self._encode(context, len(ids)), ids

    def _loglikelihood_tokens(self, requests: list[Any], **options: Any) -> list[tuple[LogLikelihood, bool]]:
        answers = super()._loglikelihood_tokens(requests, **options)
        return [(_log_likelihood(log_p, len(ids)), greedy) for (log_p, greedy), (_, _, ids) in zip(answers, requests)]

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Does nothing: results reach --use_cache only at the end, because log-likelihoods are plain numbers
        before that."""

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        files = {request.args[1]["budget_from"] for request in requests if "budget_from" in request.args[1]}
        budgets = {file: self._answer_budget(file) for file in files}
        answers: list[str] = super().generate_until([_with_budget(request, budgets) for request in requests], disable_tqdm)
        return answers

    def _answer_budget(self, file: str) -> int:
        with open(file, encoding="utf-8") as lines:
            answers = [json.loads(line)["worked_answer"] for line in lines]
        return SPARE_ANSWER_TOKENS + max(len(self.tok_encode(answer, add_special_tokens=False)) for answer in answers)

    def tok_batch_encode(self, strings: list[str], padding_side: str = "left", left_truncate_len: int | None = None,
                         truncation: bool = False) -> tuple[Any, Any]:
        if left_truncate_len is None or SEPARATOR not in strings[0]:
            batch: tuple[Any, Any] = super().tok_batch_encode(strings, padding_side, left_truncate_len, truncation)
            return batch
        room = self.max_length - left_truncate_len
        rows = [self._encode(string, room) for string in strings]
        padded = self.tokenizer.pad({"input_ids": rows}, padding_side=padding_side, return_tensors="pt")
        return padded["input_ids"], padded["attention_mask"]


def _with_budget(request: Any, budgets: dict[str, int]) -> Any:
    context, options = request.args
    if "budget_from" not in options:
        return request
    options = {**options, "max_gen_toks": budgets[options["budget_from"]]}
    del options["budget_from"]
    return dataclasses.replace(request, arguments=(context, options))


def main() -> None:
    try:
        cli_evaluate()
    except PromptTooLong as error:
        print(f"dtopp.lm_eval: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
