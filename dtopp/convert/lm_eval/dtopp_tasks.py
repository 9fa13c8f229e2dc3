"""Judges the answers of a model to the items of dtopp's tasks, right or wrong, in the same way as `dtopp evaluate`. lm-eval calls
these functions with a document and the results of its requests."""

import math
import re
import string

PUNCTUATION = re.compile("[" + re.escape(string.punctuation) + "‘’´]")


def checked(log_p):
    """Checks and returns the log-likelihood of a continuation, whose attribute `tokens` is its number of tokens."""
    if not hasattr(log_p, "tokens"):
        raise TypeError("dtopp's tasks need the model class dtopp_hf: python -m dtopp.lm_eval --model dtopp_hf …")
    if not math.isfinite(log_p):
        raise ValueError("a log probability is not finite")
    return log_p


def likeliest(doc, results):
    """Right if the right continuation has the largest mean of log p per token; for ties, the first one counts."""
    means = [checked(log_p) / log_p.tokens for log_p, _ in results]
    return {"acc": int(means.index(max(means)) == doc["gold"])}


def greedy(doc, results):
    """Right if every token of the continuation is the most likely one."""
    (log_p, is_greedy), = results
    checked(log_p)
    return {"acc": int(is_greedy)}


def begins_with_answer(doc, results):
    """Right if the text after the last " #### " of the generated text begins with the right answer; both are normalized."""
    answer = normalized(results[0].rpartition(" #### ")[2])
    return {"acc": int(answer.startswith(normalized(doc["answer"])))}


def normalized(text):
    """Lower case, without punctuation and articles, with single spaces between words."""
    text = PUNCTUATION.sub(" ", text.lower())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
