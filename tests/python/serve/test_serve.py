"""Tests `dtopp serve` with the openai client, under load, with hostile clients and at its end. The file is
long because all tests share one served model, whose start takes longest."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import corpus
import pytest
import tiny_language_run
import tiny_run
from needs import needs_program
from refusal import assert_refused
from serving import Server, error_of

pytestmark = needs_program
openai = pytest.importorskip("openai", reason="openai is not installed: scripts/setup.sh test")

PROMPT = "The fog came down at noon, and"
EXPERTS = 8
NOVELS = corpus.documents(tiny_run.ROOT / "assets/text/novels-validation.jsonl.zst")
EXACT = tiny_run.DEVICE == "cpu"  # on a GPU the last bits of a product depend on the batch


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp("served"), "dtop_p", 128, "training.steps=60",
                                   tokenizer=tiny_language_run.SMALL_TOKENIZER)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "calibration.txt"
    text.write_text("\n".join(NOVELS[::2]))
    return text


@pytest.fixture(scope="module")
def server(run, calibration):
    with Server(run, "--calibration", calibration) as server:
        yield server


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.address + "v1", api_key="none", max_retries=0)


def generate(run, *arguments):
    done = tiny_run.dtopp("generate", run, "--device", tiny_run.DEVICE, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


SAMPLED = {"temperature": 1.2, "top_p": 0.9, "seed": 5, "max_tokens": 20}
SAME = ["--temperature", "1.2", "--top-p", "0.9", "--seed", "5", "--max-tokens", "20"]


def test_a_text_is_that_of_generate(server, client, run, calibration):
    assert [model.id for model in client.models.list().data] == ["tiny"]
    assert client.models.retrieve("tiny").num_experts == EXPERTS
    whole = client.completions.create(model="tiny", prompt=PROMPT, **SAMPLED)
    assert whole.choices[0].text == generate(run, "--prompt", PROMPT, *SAME)
    greedy = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=30)
    assert greedy.choices[0].text == generate(run, "--prompt", PROMPT, "--temperature", "0", "--max-tokens", "30")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    for target in (1, 5):
        budget = client.completions.create(model="tiny", prompt=PROMPT, **SAMPLED, extra_body={"target_experts": target})
        assert budget.choices[0].text == generate(run, "--prompt", PROMPT, *SAME, "--target-experts", target,
                                                  "--target-text", calibration)


def test_choices_and_prompts_are_the_lines_of_generate(client, run, tmp_path):
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n" * 3)
    three = client.completions.create(model="tiny", prompt=PROMPT, n=3, **SAMPLED)
    texts = [choice.text for choice in three.choices]
    assert "\n".join(texts) == generate(run, "--prompts", tmp_path / "prompts.txt", *SAME)
    assert len(set(texts)) == 3 and [choice.index for choice in three.choices] == [0, 1, 2]
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\nNobody\n")
    two = client.completions.create(model="tiny", prompt=[PROMPT, "Nobody"], **SAMPLED)
    assert "\n".join(choice.text for choice in two.choices) == generate(run, "--prompts", tmp_path / "prompts.txt", *SAME)


def test_a_stream_is_the_whole_answer_in_parts(client):
    options = {"model": "tiny", "prompt": PROMPT, "n": 2, "logprobs": 2, **SAMPLED}
    whole = client.completions.create(**options)
    parts = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].usage == whole.usage and parts[-1].choices == []
    assert len(parts) > 20
    for choice in whole.choices:
        own = [part.choices[0] for part in parts if part.choices and part.choices[0].index == choice.index]
        assert "".join(part.text for part in own) == choice.text
        assert sum((part.logprobs.token_logprobs for part in own), []) == choice.logprobs.token_logprobs
        assert sum((part.active_experts for part in own), []) == choice.active_experts
        assert [part.finish_reason for part in own][-1] == choice.finish_reason and own[0].finish_reason is None


def test_log_probs_echo_and_scoring_match_the_reference(client, run):
    reference = tiny_language_run.Reference(run)
    answer = client.completions.create(model="tiny", prompt=[[9, 300, 77, 1200]], max_tokens=2, temperature=0, logprobs=3, echo=True)
    scores = answer.choices[0].logprobs
    assert len(scores.tokens) == len(answer.choices[0].active_experts) == 6 and scores.token_logprobs[0] is None
    expected = reference.log_probs([9, 300, 77, 1200])
    for position, token in enumerate((300, 77, 1200)):
        assert scores.token_logprobs[position + 1] == pytest.approx(expected[position, token].item(), abs=1e-3)
        assert max(scores.top_logprobs[position + 1].values()) == pytest.approx(expected[position].max().item(), abs=1e-3)
    assert "".join(scores.tokens) == answer.choices[0].text
    assert scores.text_offset == [len("".join(scores.tokens[:token])) for token in range(6)]
    only = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=0, logprobs=0, echo=True)
    assert only.choices[0].text == PROMPT and only.usage.completion_tokens == 0 and only.choices[0].finish_reason == "length"
    assert len(only.choices[0].logprobs.tokens) == only.usage.prompt_tokens


def test_stop_strings_end_the_text_before_them(client):
    options = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 40}
    whole = client.completions.create(**options).choices[0].text
    stop = whole[len(whole) // 2:][:4]
    cut = whole[:whole.index(stop)]
    answer = client.completions.create(**options, stop=["never there", stop], logprobs=0).choices[0]
    assert (answer.text, answer.finish_reason) == (cut, "stop")
    assert all(offset < max(len(cut), 1) for offset in answer.logprobs.text_offset)
    parts = list(client.completions.create(**options, stop=stop, stream=True))
    assert "".join(part.choices[0].text for part in parts) == cut and parts[-1].choices[0].finish_reason == "stop"


def test_the_budget_is_met_over_ten_thousand_tokens(server):
    """Served tokens of text like that of the calibration, as prompts and as the model's own text."""
    text = "\n".join(NOVELS[1::2])
    for target in (1, 2, 5, EXPERTS):
        before = server.metrics()
        tokens, experts, start = 0, 0.0, 0
        while tokens < 10_000:
            prompts = [text[start + 350 * i:][:350] for i in range(16)]
            start += 350 * len(prompts)
            usage = server.complete(prompts, target_experts=target, max_tokens=8, temperature=0.7, seed=start)["usage"]
            computed = usage["prompt_tokens"] + 7 * len(prompts)  # the last token is not fed back
            tokens += computed
            experts += computed * usage["active_experts"]
        assert experts / tokens == pytest.approx(target, rel=0.02)
        after = server.metrics()
        label = f'{{target_experts="{target}"}}'
        counted, active = (after[name + label] - before.get(name + label, 0)
                           for name in ("dtopp_computed_tokens_total", "dtopp_active_experts_total"))
        assert counted >= 10_000 and active / counted == pytest.approx(experts / tokens, rel=0.01)


def test_the_example_asks_with_several_budgets(server):
    done = subprocess.run([sys.executable, tiny_run.ROOT / "examples/ask_server.py", PROMPT, "--url", server.address, "--tokens",
                           "12", "--experts", "1", "3", str(EXPERTS)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = re.findall(rf"target (\d+): ([\d.]+) of {EXPERTS} experts per token, 12 tokens of", done.stdout)
    assert [int(target) for target, _ in lines] == [1, 3, EXPERTS]
    used = [float(experts) for _, experts in lines]
    assert 0 < used[0] < used[1] < used[2] == EXPERTS


def test_the_example_tells_in_one_line_that_no_server_answers():
    done = subprocess.run([sys.executable, tiny_run.ROOT / "examples/ask_server.py", "--url", "http://127.0.0.1:9"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith("http://127.0.0.1:9: ") and done.stderr.count("\n") == 1


def test_two_hundred_clients_get_the_texts_that_each_gets_alone(server):
    cases = [{"prompt": PROMPT[:5 + 3 * i], "seed": i, "temperature": [0, 1.3][i % 2], "max_tokens": 8 + i,
              "extra_body": {"target_experts": 1 + i % EXPERTS} if i % 3 else {}} for i in range(10)]
    alone = openai.OpenAI(base_url=server.address + "v1", api_key="none", max_retries=0)
    expected = [alone.completions.create(model="tiny", **case).choices[0].text for case in cases]

    async def ask(client, index):
        case = cases[index % len(cases)]
        if index % 2:
            return (await client.completions.create(model="tiny", **case)).choices[0].text
        stream = await client.completions.create(model="tiny", **case, stream=True)
        return "".join([part.choices[0].text async for part in stream])

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=server.address + "v1", api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*[ask(client, index) for index in range(200)])

    texts = asyncio.run(ask_all())
    if EXACT:
        assert texts == [expected[index % len(cases)] for index in range(200)]
    metrics = server.metrics()
    assert metrics["dtopp_sequences_running"] == metrics["dtopp_cache_tokens_reserved"] == 0


@pytest.mark.parametrize("fields, status, word", [
    ({"model": "other"}, 404, "other"), ({"prompt": None}, 400, "prompt"), ({"max_tokens": 4000}, 400, "128"),
    ({"target_experts": EXPERTS + 1}, 400, "target_experts"), ({"target_expert": 2}, 400, "target_experts"),
    ({"temperature": 3}, 400, "temperature"), ({"n": 1000}, 400, "n"), ({"prompt": "a" * 2_000_000}, 413, "large"),
    ({"prompt": [1, 10**9]}, 400, "prompt"),
])
def test_a_wrong_request_gets_an_error_that_names_it(server, fields, status, word):
    answer = server.request("/v1/completions", {"prompt": PROMPT, **fields})
    error = error_of(answer)
    assert answer[0] == status and word in error["message"] and error["type"] == "invalid_request_error"


def test_errors_are_the_exceptions_of_the_client(client):
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="", max_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt=PROMPT)


def status_line(port, data, then=b""):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        if then:
            connection.sendall(then)
        return connection.recv(100).split(b"\r\n")[0]


def post(body):
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def test_hostile_bytes_are_refused_and_other_clients_served(server):
    port = server.port
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    for data, status in ((b"\0" * 100 + b"\r\n\r\n", 400), (b"GET / HTTP/9.9\r\n\r\n", 400), (post(b"\0\0\0"), 400),
                         (post(b'{"prompt": "a\0b"}'), 400), (post(b'{"prompt": "\xff"}'), 400), (post(b"[" * 100_000), 400),
                         (head + b"Content-Length: 99999999999\r\n\r\n", 413), (head + b"X: " + b"x" * 20_000 + b"\r\n\r\n", 431),
                         (head + b"Content-Length: -1\r\n\r\n", 400),
                         (head + b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * 0x100000 + b"\r\n1\r\nx\r\n", 413),
                         (b"DELETE /v1/models HTTP/1.1\r\n\r\n", 405), (b"GET /v1/completions HTTP/1.1\r\n\r\n", 405),
                         (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404), (b"GET /v1/models/other HTTP/1.1\r\n\r\n", 404)):
        assert status_line(port, data).startswith(b"HTTP/1.1 %d" % status), (data[:80], status_line(port, data))
    # A client may end its side of the connection after a request.
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        page = b""
        while part := connection.recv(65536):
            page += part
    assert page.startswith(b"HTTP/1.1 200") and page.endswith(b"</html>\n")
    # A text may hold NUL.
    assert server.request("/v1/completions", {"prompt": "a\0b", "max_tokens": 2})[0] == 200
    for origin, status in (("http://evil.example", 403), (server.address.rstrip("/"), 200)):
        assert server.request("/v1/models", headers={"Origin": origin})[0] == status
    assert server.request("/v1/models", headers={"Origin": "http://evil.example", "Host": "evil.example"})[0] == 403


def test_clients_that_leave_free_their_memory(server):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 90, "temperature": 1, "n": 8, "stream": True}).encode()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(post(body))
            connection.recv(50)
    deadline = time.time() + 20
    while (metrics := server.metrics())["dtopp_cache_tokens_reserved"] > 0 and time.time() < deadline:
        time.sleep(0.1)
    assert metrics["dtopp_cache_tokens_reserved"] == metrics["dtopp_sequences_waiting"] == 0
    assert metrics['dtopp_requests_total{status="499"}'] > 0


def test_slow_and_silent_clients_do_not_keep_others_waiting(run):
    with Server(run, "--max-batch", 2, "--queue", 2) as server:
        # All connections that the server takes.
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(80)]
        for index, client in enumerate(clients):
            client.sendall([b"", b"POST /v1/comp", post(b'{"prompt": "a"}')[:-3]][index % 3])
        assert server.request("/health", timeout=40)[0] == 200
        for client in clients:
            client.close()


def test_a_full_queue_answers_429_and_a_stopping_server_503(run):
    with Server(run, "--max-batch", 1, "--queue", 1, "--kv-tokens", 128) as server:
        body = {"prompt": PROMPT, "max_tokens": 110, "temperature": 1, "seed": 3}
        assert "--kv-tokens" not in server.request("/v1/completions", body)[1]
        answers = []
        clients = [threading.Thread(target=lambda: answers.append(server.request("/v1/completions", body))) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        full = [answer for answer in answers if answer[0] == 429]
        assert full and error_of(full[0])["type"] == "rate_limit_error"
        assert {status for status, _ in answers} == {200, 429}
        assert len({json.loads(text)["choices"][0]["text"] for status, text in answers if status == 200}) == 1


def wait_until_accepted(server, requests):
    """Waits until the server has read this many requests for one sequence each. The answered ones are counted first, so
    that none counts twice."""
    deadline = time.time() + 60
    accepted = 0
    while accepted < requests and time.time() < deadline:
        answered = server.metrics().get('dtopp_requests_total{status="200"}', 0)
        metrics = server.metrics()
        accepted = answered + metrics["dtopp_sequences_running"] + metrics["dtopp_sequences_waiting"]
    assert accepted == requests


def test_sigterm_ends_after_the_running_answers(run):
    with Server(run, "--max-batch", 1) as server:
        body = json.dumps({"prompt": PROMPT, "max_tokens": 100, "temperature": 1, "stream": True}).encode()
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(40)]
        for connection in connections:
            connection.sendall(post(body))
        wait_until_accepted(server, len(connections))
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        refused = server.request("/v1/completions", {"prompt": PROMPT})
        assert refused[0] == 503 and server.request("/health")[0] == 503
        for connection in connections:
            answer = b""
            while part := connection.recv(65536):
                answer += part
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            connection.close()
        assert server.process.wait(20) == 0


def test_an_answer_that_takes_too_long_ends(run):
    with Server(run, "--timeout", 1, "--max-batch", 1) as server:
        answers = []
        body = {"prompt": PROMPT, "max_tokens": 110, "temperature": 1, "n": 100, "seed": 1}
        clients = [threading.Thread(target=lambda: answers.append(server.request("/v1/completions", body))) for _ in range(2)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert {status for status, _ in answers} == {503} and "--timeout" in error_of(answers[0])["message"]
        assert server.complete(PROMPT, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_token_guards_all_but_the_page_and_health(run, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    with Server(run, "--token-file", tmp_path / "token", "--host", "0.0.0.0", "--name", "mine") as server:
        server.address = f"http://127.0.0.1:{server.port}/"
        for path in ("/v1/models", "/metrics", "/v1/completions", "/nowhere"):
            assert server.request(path)[0] == 401
        assert server.request("/v1/models", headers={"Authorization": "Bearer secre"})[0] == 401
        assert server.request("/")[0] == server.request("/health")[0] == 200
        client = openai.OpenAI(base_url=server.address + "v1", api_key="secret", max_retries=0)
        assert client.completions.create(model="mine", prompt=PROMPT, max_tokens=2).model == "mine"
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()


def copy_of_checkpoint(run, folder):
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    subprocess.run(["cp", "-r", checkpoint, folder], check=True)
    (folder / "budgets.json").unlink(missing_ok=True)
    return folder


def kept_budgets(checkpoint):
    return {budget["experts"]: budget["thresholds"] for budget in json.loads((checkpoint / "budgets.json").read_text())["budgets"]}


def test_a_threshold_is_solved_at_its_first_request_and_kept_with_the_checkpoint(run, calibration, tmp_path):
    copy = copy_of_checkpoint(run, tmp_path / "checkpoint")
    with Server(copy) as server:
        answer = server.request("/v1/completions", {"prompt": PROMPT, "target_experts": 2})
        assert answer[0] == 400 and "--calibration" in error_of(answer)["message"]
    with Server(copy, "--calibration", calibration) as server:
        assert not (copy / "budgets.json").exists()
        first = server.complete(PROMPT, target_experts=2, seed=1)["choices"]
        assert server.complete(PROMPT, target_experts=2, seed=1)["choices"] == first
        assert json.loads(server.request("/v1/models/tiny")[1])["solved_target_experts"] == [2]
    assert server.errors.count("solving the threshold of 2 experts") == server.errors.count("solved the threshold of 2 experts") == 1
    assert list(kept_budgets(copy)) == [2]
    for options in ([], ["--calibration", calibration]):
        with Server(copy, *options) as server:
            assert server.complete(PROMPT, target_experts=2, seed=1)["choices"] == first
            status, _ = server.request("/v1/completions", {"prompt": PROMPT, "target_experts": 3})
            assert status == (200 if options else 400)
        assert ("solving the threshold of 3 experts" in server.errors) == bool(options)
    kept = kept_budgets(copy)
    assert list(kept) == [2, 3]
    with Server(copy, "--calibration", calibration, "--calibrate") as server:
        assert json.loads(server.request("/v1/models/tiny")[1])["solved_target_experts"] == list(range(1, EXPERTS + 1))
        assert list(kept_budgets(copy)) == list(range(1, EXPERTS + 1))
    assert kept.items() <= kept_budgets(copy).items() and server.errors.count("solved the threshold of") == EXPERTS - 2
    with Server(copy, "--calibrate") as server:
        assert server.complete(PROMPT, target_experts=2, seed=1)["choices"] == first
    assert "solving" not in server.errors
    other = tmp_path / "other.txt"
    other.write_text("Something else altogether. " * 300)
    with Server(copy, "--calibration", other) as server:
        server.complete(PROMPT, target_experts=2)
    assert list(kept_budgets(copy)) == [2] and kept_budgets(copy) != {2: kept[2]}
    (copy / "budgets.json").write_bytes((copy / "budgets.json").read_bytes()[:-40])
    assert_refused(serve(copy), 3, "budgets.json")
    # A kill while it solves or serves leaves nothing behind that a new start would find.
    (copy / "budgets.json").unlink()
    for delay in (0.05, 0.2, 0.4, 0.8):
        with subprocess.Popen([tiny_run.BINARY, "serve", copy, "--port", "0", "--calibration", calibration, "--calibrate"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(delay)
            process.kill()
    with Server(copy, "--calibration", calibration) as server:
        assert server.complete(PROMPT, target_experts=2, seed=1)["choices"] == first
    assert kept_budgets(copy)[2] == kept[2]


def test_texts_with_solved_thresholds_do_not_wait_for_others(run, tmp_path):
    copy = copy_of_checkpoint(run, tmp_path / "checkpoint")
    (tmp_path / "text.txt").write_text("\n".join(NOVELS * 4))
    with Server(copy, "--calibration", tmp_path / "text.txt") as server:
        expected = server.complete(PROMPT, max_tokens=2, seed=1)["choices"]
        ended = {}

        def ask(target):
            server.complete(PROMPT, target_experts=target, max_tokens=2)
            ended[target] = time.monotonic()

        clients = [threading.Thread(target=ask, args=[target]) for target in range(2, EXPERTS)]
        for client in clients:
            client.start()
        between = []
        while any(client.is_alive() for client in clients):
            assert server.complete(PROMPT, max_tokens=2, seed=1)["choices"] == expected
            between.append(time.monotonic())
        assert any(time_ < min(ended.values()) for time_ in between)
        assert len(ended) == len(clients)


def test_sigterm_ends_after_the_threshold_that_a_request_waits_for(run, calibration, tmp_path):
    copy = copy_of_checkpoint(run, tmp_path / "checkpoint")
    with Server(copy, "--calibration", calibration) as server:
        answers = []
        client = threading.Thread(target=lambda: answers.append(server.request("/v1/completions", {"prompt": PROMPT, "target_experts": 3})))
        client.start()
        wait_until_accepted(server, 1)
        server.process.send_signal(signal.SIGTERM)
        client.join()
        assert answers[0][0] == 200 and server.process.wait(20) == 0


def serve(*arguments):
    return tiny_run.dtopp("serve", *arguments, "--port", "0")


def test_a_wrong_call_is_told_in_one_line(run, calibration, server, tmp_path):
    (tmp_path / "empty").write_text("\n")
    assert_refused(serve(run, "--host", "0.0.0.0"), 2, "--token-file")
    assert_refused(serve(run, "--token-file", tmp_path / "empty"), 2, "--token-file")
    assert_refused(serve(run, "--host", "nowhere"), 2, "nowhere")
    assert_refused(tiny_run.dtopp("serve", run, "--port", str(server.port)), 2, str(server.port))
    for port in ("70000", "-1", "99999999999999999999", "http"):
        assert_refused(tiny_run.dtopp("serve", run, "--port", port), 2, ["--port", "65535"])
    copy = copy_of_checkpoint(run, tmp_path / "checkpoint")
    assert_refused(serve(copy, "--calibrate"), 2, "--calibration")
    assert_refused(serve(run, "--calibration", tmp_path / "missing"), 3, "missing")
    assert_refused(serve(run, "--max-batch", "0"), 2, "--max-batch")
    dense = tiny_language_run.train(tmp_path, "dense", 64, tokenizer=tiny_language_run.SMALL_TOKENIZER)
    assert_refused(serve(dense, "--calibration", calibration), 2, "--calibration")
    with Server(dense) as other:
        answer = other.request("/v1/completions", {"prompt": PROMPT, "target_experts": 2})
        assert answer[0] == 400 and "fixed" in error_of(answer)["message"]
        assert "active_experts" not in other.complete(PROMPT)["usage"]
