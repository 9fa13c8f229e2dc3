"""Tests `dtopp report --serve`, and the errors of `dtopp report` for bad input."""

import contextlib
import json
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import report_runs
import tiny_run
from needs import needs_program
from refusal import assert_refused
from report_browser import browser, open_page, wait_until  # noqa: F401  fixtures
from report_runs import charts_of, same, series_of, write_run

pytestmark = needs_program


def serve(*runs, port=()):
    process = subprocess.Popen([tiny_run.BINARY, "report", *map(str, runs), "--serve", *port], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    return process, process.stdout.readline().strip()


def stop(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0, process.stderr.read()


def status_of(url):
    try:
        return urllib.request.urlopen(url, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code


def test_serve_shows_what_is_appended(tmp_path, open_page):
    lines = list(report_runs.metrics_lines(200))
    run = write_run(tmp_path / "live", "live", lines=lines[:100])
    process, address = serve(run)
    try:
        page = open_page(address)
        assert len(charts_of(page, "Training loss")["series"][0]["x"]) == series_of(run, "train/lm_loss")[0][-1]
        page.get_by_text("tokens", exact=True).first.click()
        area = page.locator("figure", has=page.get_by_role("heading", name="Training loss")).locator(".area")
        area.focus()
        page.keyboard.press("l")
        torn = json.dumps(report_runs.finite(lines[150]))
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(report_runs.finite(line)) + "\n" for line in lines[100:150])
            file.write(torn[:40])
        steps, values = series_of_whole(run)
        drawn_points = "dtoppReport.charts().find(c => c.title === 'Training loss').series[0].y.length"
        wait_until(page, f"{drawn_points} === {len(values)}")
        drawn = charts_of(page, "Training loss")
        assert drawn["x_label"] == "tokens" and drawn["series"][0]["x"] == [256 * step for step in steps]
        assert same(drawn["series"][0]["y"], values)
        # The reader's focus and settings stay as they were.
        assert page.evaluate("document.activeElement.closest('figure').plot.block.title") == "Training loss"
        assert page.evaluate("document.activeElement.closest('figure').plot.isLog")
        # The file of a resumed run can become shorter.
        with (run / "metrics.jsonl").open("w") as file:
            file.writelines(json.dumps(report_runs.finite(line)) + "\n" for line in lines[:60])
        wait_until(page, f"{drawn_points} < 60")
    finally:
        stop(process)


def series_of_whole(run):
    """The series of a file whose last line is incomplete."""
    text = (run / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text[:text.rfind("\n")].splitlines()]
    held = [line for line in lines if "train/lm_loss" in line]
    return [line["step"] for line in held], [line["train/lm_loss"] for line in held]


def port_and_path(address):
    port, path = address.removeprefix("http://127.0.0.1:").split("/", 1)
    return int(port), "/" + path


def test_serve_listens_on_loopback_and_knows_two_paths(tmp_path):
    process, address = serve(write_run(tmp_path / "one", "one", 120))
    try:
        port, root = port_and_path(address)
        listening = [line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"]
        assert f"0100007F:{port:04X}" in listening and f"00000000:{port:04X}" not in listening
        assert status_of(address) == 200 and status_of(address + "update?since=0") == 200
        for path in ("favicon.ico", "../config.yaml", "%2e%2e/config.yaml", "metrics.jsonl", "?x=1"):
            assert status_of(address + path) == 404, path
        assert status_of(address + "update?since=x") == 400
        assert_refused(tiny_run.dtopp("report", tmp_path / "one", "--serve", str(port)), 2, port)
    finally:
        stop(process)


def test_serve_returns_the_report_only_for_the_token_of_this_server(tmp_path):
    """Another user of the machine can connect to the port, but cannot guess the 128 bits of the address."""
    run = write_run(tmp_path / "one", "one", 120)
    tokens = []
    for _ in range(2):
        process, address = serve(run)
        try:
            port, root = port_and_path(address)
            tokens.append(root.strip("/"))
            assert len(tokens[-1]) == 32 and int(tokens[-1], 16) >= 0
            for path in ("/", "/update?since=0", root[:-2] + "/", "/" + "0" * 32 + "/", "/" + tokens[0][::-1] + "/update?since=0"):
                assert status_of(f"http://127.0.0.1:{port}{path}") == 404, path
        finally:
            stop(process)
    assert tokens[0] != tokens[1]


def test_serve_refuses_bad_requests_while_other_clients_are_silent(tmp_path):
    process, address = serve(write_run(tmp_path / "one", "one", 120))
    port, root = port_and_path(address)
    try:
        silent, torn, long = (socket.create_connection(("127.0.0.1", port)) for _ in range(3))
        torn.sendall(b"GET / HT")
        long.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 20000)
        assert long.recv(100).startswith(b"HTTP/1.1 431")
        post = f"POST {root} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        for request, status in ((b"\r\n\r\n", 400), (b"GET /\r\n\r\n", 400), (post, 405), (bytes(range(256)) + b"\r\n\r\n", 400)):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(request)
                assert client.recv(100).startswith(b"HTTP/1.1 %d" % status), request
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(f"GET {root} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert status_of(address) == 200
        for client in (silent, torn, long):
            client.close()
    finally:
        stop(process)


def test_serve_answers_a_reader_while_slow_clients_hold_every_connection(tmp_path):
    process, address = serve(write_run(tmp_path / "one", "one", 120))
    port, _ = port_and_path(address)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    over = threading.Event()

    def drip():
        """Sends one byte per second on every connection that is still open."""
        while not over.wait(1):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(b"G")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        assert urllib.request.urlopen(address, timeout=40).status == 200
    finally:
        over.set()
        dripping.join()
        for client in clients:
            client.close()
        stop(process)


def test_bad_input_is_one_line_and_its_exit_status(tmp_path):
    damaged = write_run(tmp_path / "damaged", "damaged", 120)
    (damaged / "metrics.jsonl").write_text('{"step":1,"tokens":1,"time":1,"train/loss":3}\n{"step":2,"tok\x00\n')
    empty = tmp_path / "empty"
    empty.mkdir()
    unfinished = write_run(tmp_path / "unfinished", "unfinished", 120)
    (unfinished / "metrics.jsonl").unlink()
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.json").write_text("{}")
    for run, status, word in ((tmp_path / "nowhere", 2, "nowhere"), (empty, 2, "empty"), (unfinished, 2, "metrics.jsonl"),
                              (damaged, 3, "line 2"), (study, 3, "study.json")):
        assert_refused(tiny_run.dtopp("report", run, "--output", tmp_path / "report.html"), status, word)
        assert not (tmp_path / "report.html").exists()
    fine = write_run(tmp_path / "fine", "fine", 120)
    (fine / "tasks.json").write_text('{"step": 120, "tasks": {"copa": {}}, "average": 1}')
    done = tiny_run.dtopp("report", fine, "--output", tmp_path / "report.html")
    assert done.returncode == 0 and "tasks.json: " in done.stderr and done.stderr.count("\n") == 1
    assert done.stderr.split("tasks.json: ")[1].strip() in (tmp_path / "report.html").read_text()
    (fine / "tasks.json").unlink()
    done = tiny_run.dtopp("report", fine, "--output", tmp_path / "no/where/report.html")
    assert_refused(done, 3, tmp_path / "no/where")
    assert_refused(tiny_run.dtopp("report", "--output", tmp_path / "report.html"), 2, "run")
