"""What a session is told of S3: the connector's jars, pinned, and its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.spark.runtime import s3a
from headrace.spark.runtime.s3a import JarError, export_settings, pinned, with_connector
from headrace.testing.server_process import ServerProcess

_OWN = {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.2"}
_S3A = "spark.hadoop.fs.s3a."


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)


def settings(conf: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(_S3A): conf[key] for key in conf if key.startswith(_S3A)}


def test_the_connector_is_told_what_the_variables_say_unless_a_key_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settings(with_connector(_OWN)) == {"fast.upload.buffer": "array"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    told = {
        "endpoint": "http://a:1",
        "endpoint.region": "eu-north-1",
        "path.style.access": "true",
        "fast.upload.buffer": "array",
    }
    assert settings(with_connector(_OWN)) == told
    given = _OWN | {f"{_S3A}endpoint": "http://b:2", f"{_S3A}path.style.access": "false"}
    assert settings(with_connector(given)) == told | {
        "endpoint": "http://b:2", "path.style.access": "false"
    }  # fmt: skip


def test_the_process_is_told_what_the_keys_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID"):
        monkeypatch.setenv(name, "before")
    plain = {"endpoint": "b:2", "connection.ssl.enabled": "false", "access.key": "id"}
    export_settings({_S3A + key: value for key, value in plain.items()})
    assert os.environ["AWS_ENDPOINT_URL_S3"] == "http://b:2"
    assert os.environ["AWS_ACCESS_KEY_ID"] == "id"
    export_settings({f"{_S3A}endpoint": "s3.example"})
    assert os.environ["AWS_ENDPOINT_URL_S3"] == "https://s3.example"
    export_settings({})
    assert os.environ["AWS_ENDPOINT_URL_S3"] == "https://s3.example"


def test_jars_of_another_content_are_refused(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream's messages are served at its URL, as a repository would."""
    monkeypatch.setenv(s3a.MAVEN_VARIABLE, f"{server.url}/v1/stream/maven/")
    with pytest.raises(JarError, match=r"hadoop-aws-[\d.]+\.jar cannot be fetched: .*404"):
        s3a.fetch()
    with Client(server.url) as client:
        stream = client.stream(f"maven/{pinned()[0].path}")
        stream.create("application/octet-stream")
        stream.append(b"something else")
    with pytest.raises(JarError, match=r"hadoop-aws-[\d.]+\.jar has the SHA-256 [0-9a-f]+, not "):
        s3a.fetch()
    with pytest.raises(JarError, match="headrace pipeline prepare --s3"):
        with_connector({})


def test_jars_that_were_fetched_are_added_to_those_named() -> None:
    home = s3a._home(pinned())
    home.mkdir(parents=True)
    for jar in pinned():
        (home / jar.file).touch()
    assert s3a.fetch() == home  # nothing is missing
    named = with_connector({"spark.jars": "/mine.jar"})["spark.jars"].split(",")
    assert named == ["/mine.jar", *(str(home / jar.file) for jar in pinned())]
    assert with_connector(_OWN).get("spark.jars") is None
