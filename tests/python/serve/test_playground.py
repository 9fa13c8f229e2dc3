"""Tests the page of `dtopp serve` in a browser."""

import pathlib

import pytest
import tiny_language_run
from needs import needs_program
from report_browser import browser  # noqa: F401  fixture
from serving import Server

pytestmark = needs_program
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("playground")
    run = tiny_language_run.train(folder, "dtop_p", 128, tokenizer=tiny_language_run.SMALL_TOKENIZER)
    (folder / "calibration.txt").write_text(tiny_language_run.TEXT * 20)
    (folder / "token").write_text("secret\n")
    with Server(run, "--calibration", folder / "calibration.txt") as server:
        server.folder = folder
        yield server


@pytest.fixture
def page(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("request", lambda request: page.troubles.append(request.url)
            if not request.url.startswith((server.address, "data:")) else None)
    page.goto(server.address)
    expect(page, "#name").to_have_text("tiny")
    yield page
    context.close()
    assert not page.troubles


def expect(page, selector):
    return playwright.expect(page.locator(selector))


def set_budget(page, value):
    page.locator("#budget").fill(str(value))
    assert page.locator("#budget-value").text_content() == str(value)


def finish(page, runs):
    expect(page, "#runs tbody tr").to_have_count(runs, timeout=30000)


def test_a_text_streams_in_the_colors_of_its_experts(page, server):
    prompt = "The fog came down at noon, and"
    page.locator("#prompt").fill(prompt)
    page.locator("#seed").fill("4")
    page.locator("#max-tokens").fill("24")
    for run, target in enumerate((1, 5), start=1):
        set_budget(page, target)
        page.get_by_role("button", name="Generate").click()
        finish(page, run)
        expected = server.complete(prompt, target_experts=target, seed=4, max_tokens=24, temperature=0.8, top_p=0.95)
        assert page.locator("#text").text_content() == prompt + expected["choices"][0]["text"]
        row = page.locator("#runs tbody tr").nth(run - 1).locator("td").all_text_contents()
        assert row[0] == str(target) and float(row[1]) == pytest.approx(expected["usage"]["active_experts"], abs=0.01)
        assert int(row[2]) == expected["usage"]["completion_tokens"]
    tokens = page.locator("#text .token")
    experts = [float(value) for value in tokens.evaluate_all("tokens => tokens.map(token => token.dataset.experts)")]
    colors = tokens.evaluate_all("tokens => tokens.map(token => getComputedStyle(token).backgroundColor)")
    # Equal numbers have equal colors, different ones different colors.
    assert len(set(experts)) > 1
    assert len(set(zip(experts, colors))) == len(set(experts)) and len(set(colors)) == len(set(experts))
    assert page.locator("#scale-high").text_content() == f"{max(experts):.1f}"
    page.get_by_role("button", name="Continue this text").click()
    finish(page, 3)
    assert page.locator("#prompt").input_value().startswith(prompt)


def test_stop_ends_a_text_and_an_error_is_shown(page, server):
    page.locator("#max-tokens").fill("110")
    # The page itself clicks at the first token: on a busy machine, the text ends before a click from here arrives.
    page.evaluate("""new MutationObserver((changes, observer) => {
                       if (!document.querySelector("#text .token")) return;
                       observer.disconnect();
                       window.couldStop = !document.querySelector("#stop").disabled;
                       document.querySelector("#stop").click();
                     }).observe(document.querySelector("#text"), {childList: true, subtree: true})""")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("#text .token")
    expect(page, "#generate").to_be_enabled()
    assert page.evaluate("window.couldStop")
    page.locator("#prompt").fill("fog " * 200)
    page.get_by_role("button", name="Generate").click()
    expect(page, "#status").to_contain_text("sequence length")


def test_a_guarded_server_asks_for_its_token(browser, server):
    run = pathlib.Path(server.folder) / "run"
    with Server(run, "--token-file", server.folder / "token") as guarded:
        page = browser.new_page()
        page.goto(guarded.address)
        page.wait_for_selector("#token")
        page.locator("#token").fill("secret")
        page.locator("#token").press("Tab")
        expect(page, "#name").to_have_text("tiny")
        page.get_by_role("button", name="Generate").click()
        finish(page, 1)
        page.close()
