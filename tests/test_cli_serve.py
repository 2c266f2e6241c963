"""`workbook serve` and `workbook serve-bench`: bad input is a table; a real process is killed, started again, ended."""

import json
import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from helpers.cli import main

BENCH = ["serve-bench", "--url"]
DEAD = "http://127.0.0.1:1"
BAD = [
    (["serve", "--port", "70000"], "port is 70000"),
    (["serve", "--port", "x"], "is not a whole number"),
    (["serve", "--port", "0", "--blocks", "0"], "blocks is 0"),
    (["serve", "--port", "0", "--block-size", "0"], "block_size is 0"),
    (["serve", "--port", "0", "--max-waiting", "-1"], "max_waiting is -1"),
    (["serve", "--port", "0", "--grace", "-1"], "grace is -1"),
    (["serve", "--port", "0", "--token-budget", "0"], "token_budget is 0"),
    (["serve", "--port", "0", "--model", "nowhere"], "no model 'nowhere'"),
    (["serve-bench"], "--url"),
    ([*BENCH, DEAD], "no server answers"),
    ([*BENCH, DEAD, "--requests", "0"], "requests is 0"),
    ([*BENCH, DEAD, "--seed", "-1"], "seed is -1"),
    ([*BENCH, DEAD, "--rate", "1", "--concurrency", "1"], "not allowed with"),
    ([*BENCH, "127.0.0.1:8000"], "begin it with http://"),
    ([*BENCH, "ftp://x"], "begin it with http://"),
    ([*BENCH, "http://[::"], "the address"),
    ([*BENCH, ""], "the address"),
]


@pytest.mark.parametrize(("argv", "reason"), BAD, ids=lambda value: None)
def test_bad_input_is_told(argv, reason, capsys):
    assert main(argv) == 2
    told = capsys.readouterr().err
    assert reason in told
    assert "do: " in told


def test_a_port_in_use_is_told(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"port {port} cannot be opened: Address already in use" in capsys.readouterr().err


class Process:
    """`workbook serve` with `flags`, and where it listens."""

    def __init__(self, *flags):
        command = [sys.executable, "-m", "helpers.cli", "serve", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
        self.line = self.process.stdout.readline()
        self.url = next(word for word in self.line.split() if "http" in word).strip(",")
        self.kept = []
        self.port = self.url.rpartition(":")[2]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        self.process.stdout.close()

    def first_event(self, client, tokens):
        """A stream that has begun."""
        body = {"prompt": "they gave anna bread .", "max_tokens": tokens, "stream": True}
        stream = client.stream("POST", f"{self.url}/v1/completions", json=body)
        self.kept.append(stream)  # else it is collected, and closed
        lines = stream.__enter__().iter_lines()
        assert "choices" in next(lines)
        return lines


@pytest.mark.slow
def test_killed_started_again_on_its_port_loaded_and_ended(capsys):
    with httpx.Client(trust_env=False, timeout=60) as client:
        with Process("--port", "0") as first:
            lines = first.first_event(client, 3000)
            first.process.kill()
            with pytest.raises(httpx.HTTPError):
                list(lines)
        with Process("--port", first.port) as second:
            assert second.url == first.url
            load = ["--requests", "20", "--prompt-tokens", "8", "--new-tokens", "4", "--json"]
            assert main([*BENCH, f"{second.url}/v1/", *load]) == 0
            figures = json.loads(capsys.readouterr().out)
            assert (figures["answered"], figures["failures"]) == (20, {})
            lines = second.first_event(client, 60)
            second.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"  # within the time of grace
            assert second.process.wait(20) == 0
        assert main([*BENCH, first.url]) == 2


@pytest.mark.slow
def test_a_long_answer_is_ended_after_the_grace_and_the_exit_is_clean():
    with httpx.Client(trust_env=False, timeout=60) as client, Process("--port", "0", "--grace", "1") as server:
        lines = server.first_event(client, 4000)
        server.process.send_signal(signal.SIGINT)
        last = [line for line in lines if line][-1]
        assert "the server has stopped" in last
        assert server.process.wait(20) == 130


def test_a_wrong_server_is_told(capsys, tmp_path):
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:
        port = other.stdout.readline().split(" port ")[1].split()[0]
        try:
            assert main([*BENCH, f"http://127.0.0.1:{port}"]) == 2
        finally:
            other.kill()
    assert "answers with status 404" in capsys.readouterr().err
