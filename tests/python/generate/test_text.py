"""Tests generate and expert budgets against the plain PyTorch model."""

import errno
import json
import os
import re
import signal
import subprocess

import pytest
import tiny_language_run
import tiny_run
import tokenizers
from needs import needs_program
from refusal import assert_refused

pytestmark = needs_program

PROMPT = "The fog came down at noon, and"


@pytest.fixture(scope="module", params=["dtop_p", *tiny_run.in_full("dtop_p_layer", "dense")])
def run(request, tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp(request.param), request.param, 128)


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.Tokenizer.from_file(str(tiny_language_run.TOKENIZER))


def generate(run, *arguments):
    done = tiny_run.dtopp("generate", run, *arguments)
    assert done.returncode == 0, done.stderr
    return done


def test_greedy_text_is_the_reference_models(run, tokenizer):
    reference = tiny_language_run.Reference(run)
    ids = tokenizer.encode(PROMPT).ids
    generated = []
    for _ in range(24):
        token = reference.log_probs(ids + generated)[-1].argmax().item()
        if token == 0:
            break
        generated.append(token)
    done = generate(run, "--prompt", PROMPT, "--max-tokens", "24", "--temperature", "0")
    assert done.stdout == tokenizer.decode(generated) + "\n"
    assert f"{len(generated)} tokens" in done.stderr


def test_prompts_side_by_side_are_as_each_by_itself(run, tmp_path):
    prompts = [PROMPT, "Nobody", "A longer line that says nothing of the kind, at some length"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    options = ["--max-tokens", "12", "--temperature", "0"]
    together = generate(run, "--prompts", tmp_path / "prompts.txt", *options).stdout
    assert together == "".join(generate(run, "--prompt", prompt, *options).stdout for prompt in prompts)


def test_json_and_echo_tell_which_text_continues_which_prompt(run, tmp_path):
    prompts = [PROMPT, "Nobody", PROMPT]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    options = ["--max-tokens", "12", "--temperature", "1.5", "--top-p", "1"]
    plain = generate(run, "--prompts", tmp_path / "prompts.txt", *options).stdout
    done = generate(run, "--prompts", tmp_path / "prompts.txt", *options, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["index"], line["prompt"]) for line in lines] == list(enumerate(prompts))
    assert "".join(line["text"] + "\n" for line in lines) == plain
    assert f"{sum(line['tokens'] for line in lines)} tokens" in done.stderr
    if "dense" in str(run):
        assert all("active_experts" not in line for line in lines)
    else:
        mean = sum(line["tokens"] * line["active_experts"] for line in lines) / sum(line["tokens"] for line in lines)
        assert mean == pytest.approx(float(re.search(r"([\d.]+) of 8 experts", done.stderr).group(1)), abs=0.006)
    echoed = generate(run, "--prompts", tmp_path / "prompts.txt", *options, "--echo").stdout
    assert echoed == "".join(line["prompt"] + line["text"] + "\n" for line in lines)
    one = generate(run, "--prompt", PROMPT, *options).stdout
    assert generate(run, "--prompt", PROMPT, *options, "--echo").stdout == PROMPT + one
    assert json.loads(generate(run, "--prompt", PROMPT, *options, "--json").stdout)["text"] + "\n" == one


def test_a_seed_repeats_its_text_and_another_gives_another(run):
    texts = [generate(run, "--prompt", PROMPT, "--temperature", "1.5", "--top-p", "1", "--seed", seed).stdout
             for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_sequence_length_ends_the_text(run, tokenizer):
    done = generate(run, "--prompt", PROMPT, "--max-tokens", "1000", "--temperature", "1", "--top-p", "1")
    tokens = int(re.search(r"(\d+) tokens", done.stderr).group(1))
    room = 128 - len(tokenizer.encode(PROMPT).ids)
    assert 0 < tokens <= room
    assert ("sequence length of 128" in done.stderr) == (tokens == room)
    assert "sequence length" not in generate(run, "--prompt", PROMPT, "--max-tokens", "2").stderr


def test_a_tiny_top_p_is_greedy(run):
    greedy = generate(run, "--prompt", PROMPT, "--max-tokens", "12", "--temperature", "0").stdout
    assert generate(run, "--prompt", PROMPT, "--max-tokens", "12", "--temperature", "1", "--top-p",
                    "1e-9").stdout == greedy


def test_drawn_tokens_have_the_models_probabilities(run, tokenizer, tmp_path):
    """The first token of many equal prompts matches the reference's distribution within four standard
    deviations."""
    reference = tiny_language_run.Reference(run)
    top = reference.log_probs(tokenizer.encode("Nobody").ids)[-1].div(0.5).softmax(-1).topk(3)
    draws = 400
    (tmp_path / "prompts.txt").write_text("Nobody\n" * draws)
    texts = generate(run, "--prompts", tmp_path / "prompts.txt", "--max-tokens", "1", "--temperature", "0.5", "--top-p",
                     "1").stdout
    for token, probability in zip(top.indices.tolist(), top.values.tolist()):
        text = tokenizer.decode([token])
        share = texts.split("\n").count(text) / draws
        if "\n" not in text:
            assert abs(share - probability) < 4 * (probability * (1 - probability) / draws) ** 0.5 + 1 / draws


def test_experts_are_shown_beside_the_text(run):
    if "dense" in str(run):
        assert_refused(tiny_run.dtopp("generate", run, "--prompt", PROMPT, "--show-experts"), 2, "has no experts")
        return
    done = generate(run, "--prompt", PROMPT, "--max-tokens", "8", "--temperature", "0", "--show-experts")
    numbers = [float(number) for number in re.findall(r"\[(\d+\.\d)\]", done.stdout)]
    assert numbers and all(1 <= number <= 8 for number in numbers)
    mean = float(re.search(r"([\d.]+) of 8 experts", done.stderr).group(1))
    assert min(numbers) - 0.05 <= mean <= max(numbers) + 0.05


def perplexity(run, text, *arguments):
    done = tiny_run.dtopp("evaluate", "text", run, "--text", text, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_thresholds_are_solved_for_any_budget(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(tiny_language_run.TEXT * 20)
    if "dense" in str(run):
        assert_refused(tiny_run.dtopp("evaluate", "text", run, "--text", text, "--target-experts", "2"), 2, "threshold")
        return
    for target in (1.5, 2, 5):
        out = perplexity(run, text, "--target-experts", target)
        mean = float(re.search(r"experts +([\d.]+) per token", out).group(1))
        assert mean == pytest.approx(target, rel=0.02)
    sweep = json.loads(perplexity(run, text, "--sweep-target", "2,4", "--json"))["sweep"]
    assert [entry["target_experts"] for entry in sweep] == [2, 4]
    assert all(entry["active_experts"] == pytest.approx(entry["target_experts"], rel=0.02) for entry in sweep)


def test_a_stopped_text_exits_75(run):
    command = [tiny_run.BINARY, "generate", run, "--prompt", PROMPT, "--temperature", "0", "--max-tokens", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        first = running.stdout.read(1)
        running.send_signal(signal.SIGTERM)
        text, errors = running.communicate(timeout=60)
    assert running.returncode == 75 and first
    assert errors.startswith(b"dtopp: ") and text.endswith(b"\n")


def test_text_that_nobody_takes_exits_3(run, tmp_path):
    (tmp_path / "prompts.txt").write_text(PROMPT + "\nNobody\n")
    for prompts in (["--prompt", PROMPT], ["--prompts", tmp_path / "prompts.txt"]):
        with open("/dev/full", "w") as full:
            done = tiny_run.dtopp("generate", run, *prompts, "--max-tokens", "8", capture_output=False, stdout=full,
                                  stderr=subprocess.PIPE)
        assert_refused(done, 3, ["standard output", os.strerror(errno.ENOSPC)])


def interact(run, lines, *arguments):
    done = tiny_run.dtopp("generate", run, "--interactive", "--max-tokens", "12", *arguments, input="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    return done


def test_lines_and_pieces_are_one_text(run, tokenizer):
    """Every piece is the reference model's greedy continuation of all that came before it."""
    reference = tiny_language_run.Reference(run)
    ids, pieces = [], []
    for line in (PROMPT, "\nNobody", ""):
        ids += tokenizer.encode(line).ids
        pieces.append([])
        for _ in range(12):
            ids.append(reference.log_probs(ids)[-1].argmax().item())
            if ids[-1] == 0:
                break
            pieces[-1].append(ids[-1])
    done = interact(run, [PROMPT, "Nobody", ""], "--temperature", "0")
    assert done.stdout == "".join(tokenizer.decode(piece) + "\n" for piece in pieces)
    assert "not trained to answer" in done.stderr


def test_a_text_longer_than_the_sequence_drops_its_beginning(run):
    done = interact(run, [PROMPT] * 12)
    assert done.stderr.count("12 tokens") + done.stderr.count("ended the text") >= 12
    assert "oldest" in done.stderr


def test_commands_change_the_session(run, tmp_path):
    (tmp_path / "text.txt").write_text(tiny_language_run.TEXT * 20)
    plain = interact(run, [PROMPT], "--temperature", "0").stdout
    assert interact(run, ["something else", "/reset", PROMPT], "--temperature", "0").stdout.endswith(plain)
    assert interact(run, ["/temperature 0", PROMPT, "/quit", PROMPT]).stdout == plain
    again = interact(run, [PROMPT, "/again"], "--temperature", "1.5", "--top-p", "1").stdout
    once = interact(run, [PROMPT], "--temperature", "1.5", "--top-p", "1").stdout
    assert again.startswith(once) and again != once + once
    if "dense" in str(run):
        return
    options = ["--temperature", "0", "--target-text", tmp_path / "text.txt"]
    done = interact(run, ["/experts", "/target 1", PROMPT, "/target 8", "Nobody"], *options)
    numbers = [float(number) for number in re.findall(r"\[(\d+\.\d)\]", done.stdout)]
    assert set(numbers[:6]) == {1.0} and numbers[-1] == 8.0 and "the next text shows its experts" in done.stderr


def test_help_lists_every_command_once_asked(run):
    commands = ["/target", "/experts", "/temperature", "/again", "/reset", "/help", "/quit"]
    started = interact(run, ["/quit"]).stderr
    assert "/help" in started and max(map(len, started.splitlines())) <= 100
    told = interact(run, ["/help", "/quit"]).stderr.removeprefix(started)
    assert re.findall(r"^  (/\w+)", told, re.M) == commands


@pytest.mark.parametrize("line, names", [
    ("/target", "/target"), ("/target much", "/target"), ("/target 99", "/target"), ("/target 2", "--target-text"),
    ("/temperature -1", "/temperature"), ("/again", "/again"), ("/reset now", "/reset"), ("/bogus", "/bogus"),
])
def test_a_wrong_command_is_told_in_one_line_and_the_session_goes_on(run, line, names):
    usual = interact(run, [PROMPT], "--temperature", "0")
    done = interact(run, [line, PROMPT], "--temperature", "0")
    assert done.stdout == usual.stdout
    added = [told for told in done.stderr.splitlines() if told not in usual.stderr.splitlines() and "tok/s" not in told]
    assert len(added) == 1 and added[0].startswith("dtopp: ")
    if "dense" not in str(run):
        assert names in added[0]


def test_input_that_is_no_text_is_told_and_the_session_goes_on(run):
    command = [tiny_run.BINARY, "generate", run, "--interactive", "--temperature", "0", "--max-tokens", "12"]
    lines = b"\xff\xfe\n" + b"a" * (1 << 21) + b"\n" + PROMPT.encode() + b"\n"
    done = subprocess.run(command, input=lines, capture_output=True)
    assert done.returncode == 0
    assert b"not valid UTF-8" in done.stderr and b"longer than 1 MiB" in done.stderr
    assert done.stdout.decode() == interact(run, [PROMPT], "--temperature", "0").stdout


def test_a_closed_output_ends_the_session_with_3(run):
    with open("/dev/full", "w") as full:
        done = tiny_run.dtopp("generate", run, "--interactive", input=PROMPT + "\n" + PROMPT + "\n", capture_output=False,
                              stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("arguments, names", [
    ([], "--prompt"),
    (["--prompt", "a", "--prompts", "b"], ["--prompts", "give one of them"]),
    (["--prompt", ""], ["--prompt", "is empty"]),
    (["--prompt", "a", "--interactive"], ["--prompt", "--interactive"]),
    (["--prompt", PROMPT * 20], "128"),
    (["--prompt", PROMPT, "--target-experts", "2"], "--target-text"),
    (["--prompt", PROMPT, "--target-text", "x"], ["--target-text", "--target-experts"]),
    (["--prompt", PROMPT, "--temperature", "nan"], ["--temperature", "nan"]),
    (["--prompt", PROMPT, "--top-p", "nan"], ["--top-p", "nan"]),
    (["--prompt", PROMPT, "--target-experts", "nan"], ["--target-experts", "nan"]),
    (["--prompt", PROMPT, "--device", "gpu"], ["--device", "gpu", "auto|cpu|cuda"]),
])
def test_a_wrong_call_is_told_in_one_line(run, arguments, names):
    done = tiny_run.dtopp("generate", run, *arguments)
    assert_refused(done, 2, names)
    assert done.stdout == ""
