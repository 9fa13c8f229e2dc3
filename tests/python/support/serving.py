"""Runs `dtopp serve` and talks to it."""

import contextlib
import json
import re
import signal
import subprocess
import urllib.error
import urllib.request

import tiny_run


class Server:
    """A served run. `with Server(run) as server:` stops it with SIGTERM, which must end it with 0."""

    def __init__(self, run, *options):
        self.process = subprocess.Popen([tiny_run.BINARY, "serve", str(run), "--port", "0", "--device", tiny_run.DEVICE, *map(str, options)],
                                        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.address = self.process.stdout.readline().strip()
        assert self.address, self.process.communicate()[1]
        self.port = int(re.search(r":(\d+)/$", self.address).group(1))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            _, self.errors = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert self.process.returncode == 0, self.errors

    def request(self, path, body=None, headers=(), timeout=60):
        """Returns the status and the text of the answer."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.address.rstrip("/") + path, data, {"Content-Type": "application/json", **dict(headers)})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                return error.code, error.read().decode()

    def complete(self, prompt, **fields):
        """Returns the answer to a request that must succeed."""
        status, text = self.request("/v1/completions", {"prompt": prompt, **fields})
        assert status == 200, text
        return json.loads(text)

    def metrics(self):
        """The numbers of /metrics by name, with labels."""
        lines = self.request("/metrics")[1].splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def error_of(answer):
    """The error of an answer (status, text)."""
    return json.loads(answer[1])["error"]
