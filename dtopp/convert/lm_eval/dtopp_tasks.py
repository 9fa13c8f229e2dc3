"""From what a model says to an item of dtopp's tasks to right or wrong, as `dtopp evaluate` judges it. For lm-eval, which calls
these with a document and the answers to its requests."""

import math
import re
import string

PUNCTUATION = re.compile("[" + re.escape(string.punctuation) + "‘’´]")


def checked(log_p):
    """The log-likelihood of a continuation, which knows its number of tokens."""
    if not hasattr(log_p, "tokens"):
        raise TypeError("dtopp's tasks need the model class dtopp_hf: python -m dtopp.lm_eval --model dtopp_hf …")
    if not math.isfinite(log_p):
        raise ValueError("a log probability is not finite")
    return log_p


def likeliest(doc, results):
    """The continuation with the largest mean of log p a token; of equal ones the first."""
    means = [checked(log_p) / log_p.tokens for log_p, _ in results]
    return {"acc": int(means.index(max(means)) == doc["gold"])}


def greedy(doc, results):
    """Every token of the continuation is the likeliest."""
    (log_p, is_greedy), = results
    checked(log_p)
    return {"acc": int(is_greedy)}


def begins_with_answer(doc, results):
    """What follows the last " #### " of the generated text begins with the right answer, both normalised."""
    answer = normalized(results[0].rpartition(" #### ")[2])
    return {"acc": int(answer.startswith(normalized(doc["answer"])))}


def normalized(text):
    """Lower case; punctuation and the articles gone; single spaces between words."""
    text = PUNCTUATION.sub(" ", text.lower())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
