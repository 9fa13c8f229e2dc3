"""Texts that a run generates while it trains."""

import tiny_language_run
import tiny_run
from needs import for_cpus, needs_program
from refusal import assert_refused

pytestmark = [needs_program, for_cpus]

OPTIONS = ["validation.every=2", "validation.tokens=256", "training.micro_batch_size=1"]


def train(folder, *options):
    folder.mkdir()
    return tiny_language_run.train(folder, "dtop_p", 64, f"data.validation=[{folder / 'tokens'}]", *OPTIONS, *options,
                                   tokenizer=tiny_language_run.SMALL_TOKENIZER)


def texts(run):
    return {path.name: path.read_text().splitlines() for path in (run / "samples").iterdir()}


def test_texts_continue_held_out_openings_and_do_not_depend_on_the_number_of_ranks(tmp_path):
    alone = train(tmp_path / "1", "validation.samples=2")
    assert sorted(texts(alone)) == ["step-00000002.txt", "step-00000004.txt"]
    for lines in texts(alone).values():
        assert len(lines) == 2
        opening, continuation = lines[0].split(" | ")
        assert tiny_language_run.TEXT.replace("\n", " ").startswith(opening) and len(opening) > 16 and continuation
    assert texts(train(tmp_path / "2", "validation.samples=2", "--processes", 2)) == texts(alone)
    without = train(tmp_path / "without")
    assert not (without / "samples").exists()
    assert tiny_run.timeless(tiny_run.metrics(without)) == tiny_run.timeless(tiny_run.metrics(alone))


def test_texts_need_held_out_data_and_a_tokenizer(tmp_path):
    config = tiny_run.make(tmp_path)
    assert_refused(tiny_run.dtopp("train", config, "validation.samples=1"), 2, ["validation.samples", "tokenizer.json"])
    assert_refused(tiny_run.dtopp("train", config, "validation.samples=1", "data.validation=[]"), 2,
                   ["validation.samples", "data.validation"])
