"""Tests evaluate tasks --dry-run on the 13 tasks against a plain Python version with CPython's own random numbers
and sets and Hugging Face `tokenizers`. Also tests the errors for wrong calls and damaged data."""

import gzip
import json
import random
import shutil

import pytest
import tiny_run
import tokenizers
from corpus import decompress
from needs import TASK_DATA, needs_program
from refusal import assert_refused

pytestmark = needs_program

TOKENIZER = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"
LIMIT = 2048

# name: (shots, prelimiter, continuation delimiter), in the order of a dump
TASKS = {
    "svamp": (5, "Q: ", "\nUsing the formula below:\n"),
    "mmlu": (5, "", "\nAnswer: "),
    "arc_easy": (0, "", "\nAnswer: "),
    "arc_challenge": (0, "", "\nAnswer: "),
    "copa": (5, "", " "),
    "piqa": (5, "", "\nAnswer: "),
    "hellaswag": (0, "", " "),
    "winogrande": (5, "", " "),
    "lambada_openai": (5, "", " "),
    "boolq": (5, "", "\nAnswer: "),
    "agi_eval_lsat_rc": (5, "", " "),
    "agi_eval_lsat_lr": (5, "", " "),
    "agi_eval_sat_en": (5, "", " "),
}


def data_sets(name, folder):
    """Returns (category or None, items) in the order of a dump."""
    items = [json.loads(line) for line in decompress(folder / f"{name}.jsonl.zst").decode().split("\n") if line]
    raw_answers = [item["chain_of_thought"] + " #### " + item["answer"] for item in items] if name == "svamp" else []
    items = [{key: value.strip() if isinstance(value, str) else value for key, value in item.items()} for item in items]
    categories = sorted({item.get("category") or "" for item in items}, key=str.encode)
    return [(category or None, [item for item in items if (item.get("category") or "") == category])
            for category in categories], raw_answers


def draw(count, shots, seed=1234):
    """The exemplars of each item, as the harness draws them."""
    generator = random.Random(seed)
    for index in range(count if shots else 0):
        chosen = set(generator.sample(range(count), shots))
        if index in chosen:
            chosen.remove(index)
            other = generator.randint(0, count - 1)
            while other in chosen or other == index:
                other = generator.randint(0, count - 1)
            chosen.add(other)
        yield list(chosen)


def spaced(text):
    return text if text.startswith(" ") else " " + text


def example(item, prelimiter, delimiter):
    if "context_options" in item:
        return item["context_options"][item["gold"]] + delimiter + item["continuation"]
    question = prelimiter + item.get("query", item.get("context")) + delimiter
    if "choices" in item:
        return question + item["choices"][item["gold"]]
    if "answer" in item:
        return question + item["chain_of_thought"] + " #### " + item["answer"]
    return question + item["continuation"]


def strings(item, preamble, prelimiter, delimiter):
    """Returns contexts and continuations, one of each per sequence."""
    start = "\n" if preamble else ""
    if "context_options" in item:
        return [start + option for option in item["context_options"]], [spaced(item["continuation"])] * 2
    context = (start + prelimiter + item.get("query", item.get("context")) + delimiter).rstrip()
    if "answer" in item:
        return [context], [""]
    continuations = [spaced(choice) for choice in item.get("choices", [item.get("continuation")])]
    return [context] * len(continuations), continuations


def expected_lines(name, folder, limit, encode):
    shots, prelimiter, delimiter = TASKS[name]
    sets, raw_answers = data_sets(name, folder)
    budget = 10 + max(len(encode(answer)) for answer in raw_answers) if raw_answers else 0
    for category, items in sets:
        exemplars = list(draw(len(items), shots)) or [[]] * len(items)
        for index, item in enumerate(items[:limit]):
            preamble = "\n".join(example(items[i], prelimiter, delimiter) for i in exemplars[index])
            contexts, continuations = strings(item, preamble, prelimiter, delimiter)
            ids = [encode(continuation) for continuation in continuations]
            prompts = [(encode(preamble) + encode(context))[-(LIMIT - budget - len(continuation)):]
                       for context, continuation in zip(contexts, ids)]
            shared = all(prompt == prompts[0] for prompt in prompts)
            yield {"task": name, "category": category, "index": index, "contexts": prompts[:1] if shared else prompts,
                   "continuations": [] if raw_answers else ids}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose checkpoint holds the tokenizer."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "source.txt").write_text("The fog came down at noon, and with it the silence. " * 60)
    done = tiny_run.dtopp("prepare", "text", directory / "source.txt", "--tokenizer", TOKENIZER, "--output",
                          directory / "tokens")
    assert done.returncode == 0, done.stderr
    done = tiny_run.dtopp("train", tiny_run.make(directory), "model.vocab_size=50304", "training.steps=3",
                          f"data.train=[{directory / 'tokens'}]", "validation.every=0")
    assert done.returncode == 0, done.stderr
    return directory / "run"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A run on token files with 256 ids, whose checkpoint holds no tokenizer."""
    directory = tmp_path_factory.mktemp("bare")
    done = tiny_run.dtopp("train", tiny_run.make(directory), "training.steps=3", "validation.every=0")
    assert done.returncode == 0, done.stderr
    return directory / "run"


@pytest.fixture(scope="session")
def task_data():
    if not TASK_DATA.is_dir():
        pytest.skip(f"{TASK_DATA} is missing: scripts/get_data.py tasks")
    return TASK_DATA


def evaluate(run, *arguments):
    return tiny_run.dtopp("evaluate", "tasks", run, "--dry-run", *arguments)


def dump_of(run, folder, tmp_path, *arguments):
    done = evaluate(run, "--data", folder, "--dump", tmp_path / "dump.jsonl", *arguments)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "dump.jsonl") as lines:
        yield from map(json.loads, lines)


def assert_same(ours, expected):
    for line in expected:
        assert next(ours) == line
    assert next(ours, None) is None


@pytest.mark.parametrize("name", TASKS)
def test_prompts_equal_those_of_plain_python(trained, task_data, tmp_path, name):
    reference = tokenizers.Tokenizer.from_file(str(TOKENIZER))

    def encode(text):
        return reference.encode(text, add_special_tokens=False).ids

    limit = 10**9 if tiny_run.FULL else 6 if name == "mmlu" else 60
    ours = dump_of(trained, task_data, tmp_path, "--tasks", name, *([] if tiny_run.FULL else ["--limit", limit]))
    assert_same(ours, expected_lines(name, task_data, limit, encode))


def test_all_tasks_come_in_their_order_whatever_their_compression(trained, task_data, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in TASKS:
        shutil.copy(task_data / f"{name}.jsonl.zst", folder)
    text = decompress(folder / "copa.jsonl.zst")
    (folder / "copa.jsonl.zst").unlink()
    (folder / "copa.jsonl.gz").write_bytes(gzip.compress(text))
    text = decompress(folder / "piqa.jsonl.zst")
    (folder / "piqa.jsonl.zst").unlink()
    (folder / "piqa.jsonl").write_bytes(text)
    lines = list(dump_of(trained, folder, tmp_path, "--tasks", "all", "--limit", "1"))
    order = [name for name in TASKS for _ in range(57 if name == "mmlu" else 1)]
    assert [line["task"] for line in lines] == order
    assert all(line["index"] == 0 for line in lines)
    some = list(dump_of(trained, folder, tmp_path, "--tasks", "piqa,copa,svamp", "--limit", "1"))
    assert some == [line for line in lines if line["task"] in ("svamp", "copa", "piqa")]


def test_counts_equal_the_golden_ones(trained, task_data, dtopp_data, tmp_path):
    golden = json.loads((dtopp_data / "eval/golden/summary.json").read_text())
    done = evaluate(trained, "--data", task_data, "--tasks", "svamp,winogrande,agi_eval_sat_en", "--json", "--output",
                    tmp_path / "counts.json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert json.loads((tmp_path / "counts.json").read_text()) == counts
    assert list(counts["tasks"]) == ["svamp", "winogrande", "agi_eval_sat_en"]
    for name, count in counts["tasks"].items():
        want = golden[name]
        assert [count[key] for key in ("items", "sequences", "cut_sequences", "tokens")] == \
            [want[key] for key in ("items", "sequences", "truncated", "total_tokens")]
        assert count["longest"] == min(LIMIT, want["max_untrimmed"] + want["gen_budget"])


def fails(status, names, run, *arguments):
    assert_refused(tiny_run.dtopp("evaluate", "tasks", run, *arguments), status, names)


def test_wrong_calls_exit_2(trained, bare, tmp_path):
    copa = ["--tasks", "copa", "--data", tmp_path]
    fails(2, ["'copaa'", "copa?"], trained, "--tasks", "copaa", "--data", tmp_path, "--dry-run")
    fails(2, ["--data"], trained, "--tasks", "copa", "--dry-run")
    fails(2, ["--text"], trained, *copa, "--text", TOKENIZER)
    fails(2, ["--limit"], trained, *copa, "--limit", "0")
    fails(2, tmp_path / "nothing", tmp_path / "nothing", *copa, "--dry-run")
    fails(2, ["tokenizer.json", "--tokenizer"], bare, *copa, "--dry-run")
    fails(2, ["50277", "256"], bare, *copa, "--dry-run", "--tokenizer", TOKENIZER)
    other = tmp_path / "other.json"
    other.write_text(TOKENIZER.read_text() + "\n")
    fails(2, other, trained, *copa, "--dry-run", "--tokenizer", other)


def test_a_model_shorter_than_a_prompt_exits_2(trained, task_data):
    fails(2, ["copa", "model.sequence_length"], trained, "--tasks", "copa", "--data", task_data)


def test_missing_damaged_or_changed_data_exits_3_and_leaves_no_dump(trained, task_data, tmp_path):
    def check(words):
        fails(3, words, trained, "--tasks", "copa", "--data", tmp_path, "--dry-run", "--dump", tmp_path / "dump.jsonl")
        assert not list(tmp_path.glob("*dump*"))

    check(["copa.jsonl", "scripts/get_data.py tasks"])
    good = (task_data / "copa.jsonl.zst").read_bytes()
    (tmp_path / "copa.jsonl.zst").write_bytes(good[:-20])
    check("copa.jsonl.zst")
    (tmp_path / "copa.jsonl.zst").unlink()
    text = decompress(task_data / "copa.jsonl.zst")
    (tmp_path / "copa.jsonl").write_bytes(text.replace(b'"gold": ', b'"gold": 1', 1))
    check(["copa.jsonl: line 1: ", "gold"])
    (tmp_path / "copa.jsonl").write_bytes(text.replace(b"faucet", b"fawcet", 1))
    check(["copa.jsonl", "SHA-256"])
    (tmp_path / "copa.jsonl").write_bytes(text[:text.rindex(b"\n", 0, -1) + 1])
    check(["copa.jsonl", "SHA-256"])
    (tmp_path / "copa.jsonl").write_bytes(text)
    fails(3, ["/proc"], trained, "--tasks", "copa", "--data", tmp_path, "--dry-run", "--dump", "/proc/dump.jsonl")
