"""Following a stream from offset to offset, and asking a server what it counts."""

from __future__ import annotations

import httpx

ANSWERS_MAX = 10_000  # a server that returns the same offset for ever must not hang a test


def catch_up(http: httpx.Client, path: str, offset: str = "-1") -> list[httpx.Response]:
    """Every answer from `offset` to the tail, each asked for where the one before it ended."""
    answers: list[httpx.Response] = []
    while len(answers) < ANSWERS_MAX:
        answer = http.get(path, params={"offset": offset})
        assert answer.status_code == 200, answer.text
        answers.append(answer)
        if "Stream-Up-To-Date" in answer.headers:
            return answers
        offset = answer.headers["Stream-Next-Offset"]
    raise AssertionError(f"{path} has no tail after {ANSWERS_MAX} answers")


def metric(http: httpx.Client, sample: str, path: str = "/metrics") -> float:
    """The value of one sample, named as Prometheus writes it: `name` or `name{label="x"}`."""
    for line in http.get(path).text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == sample:
            return float(value)
    raise AssertionError(f"{path} has no sample {sample}")


def live_readers(http: httpx.Client, mode: str, path: str = "/metrics") -> int:
    """How many live reads wait; `mode` is long-poll or sse."""
    return int(metric(http, f'headrace_live_readers{{mode="{mode}"}}', path))
