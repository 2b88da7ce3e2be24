"""Hadoop's S3 connector, with which Spark keeps a checkpoint in a bucket: its jars and settings.

The jars are pinned in `s3a_jars.txt` and fetched from Maven Central once per user, by `headrace
pipeline prepare --s3`. A session that has jars of the connector already is left alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import httpx
import pyspark

from headrace.spark.object_store import endpoint
from headrace.spark.runtime.java import cache_home

_CONNECTOR: Final = "hadoop-aws"
_MAVEN: Final = "https://repo1.maven.org/maven2"
MAVEN_VARIABLE: Final = "HEADRACE_MAVEN_URL"  # of a mirror
_TIMEOUT_SECS: Final = 60.0
_AT_ONCE: Final = 4
_JAR_KEYS: Final = ("spark.jars", "spark.jars.packages")
_HADOOP: Final = "spark.hadoop.fs.s3a."
# Settings that may be in Spark's keys; everything but the connector reads the variables.
_VARIABLES: Final = {
    "endpoint": "AWS_ENDPOINT_URL_S3",
    "endpoint.region": "AWS_REGION",
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
}


class JarError(RuntimeError):
    """The connector's jars are not there or not what they should be; the message says more."""


@dataclass(frozen=True)
class Jar:
    sha256: str
    group: str
    artifact: str
    version: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Below the root of a Maven repository."""
        group = self.group.replace(".", "/")
        return f"{group}/{self.artifact}/{self.version}/{self.file}"


def pinned() -> list[Jar]:
    lines = files(__package__).joinpath("s3a_jars.txt").read_text("ascii").splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return [Jar(sha256, *coordinates.split(":")) for sha256, coordinates in pairs]


def fetch() -> Path:
    """The directory of the jars, fetched unless they are there."""
    jars = pinned()
    _check_hadoop(jars)
    home = _home(jars)
    home.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in jars if not (home / jar.file).exists()]
    root = os.environ.get(MAVEN_VARIABLE, _MAVEN).rstrip("/")
    with (
        httpx.Client(timeout=_TIMEOUT_SECS, follow_redirects=True) as http,
        ThreadPoolExecutor(_AT_ONCE) as threads,
    ):
        for fetched in [threads.submit(_fetch, http, root, jar, home) for jar in missing]:
            fetched.result()
    return home


def _fetch(http: httpx.Client, root: str, jar: Jar, home: Path) -> None:
    url = f"{root}/{jar.path}"
    try:
        body = http.get(url).raise_for_status().content
    except httpx.HTTPError as error:
        raise JarError(f"{url} cannot be fetched: {error}") from None
    found = hashlib.sha256(body).hexdigest()
    if found != jar.sha256:
        raise JarError(f"{url} has the SHA-256 {found}, not {jar.sha256}.")
    new = home / f"{jar.file}.{os.getpid()}"
    new.write_bytes(body)
    new.replace(home / jar.file)  # whole or not at all: another process may be starting


def with_connector(given: Mapping[str, str]) -> dict[str, str]:
    """Spark's keys of a session whose checkpoint is on S3. JarError if it has no connector."""
    conf = dict(given)
    place = endpoint()
    if place:
        conf.setdefault(f"{_HADOOP}endpoint", place)
        conf.setdefault(f"{_HADOOP}path.style.access", "true")
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        conf.setdefault(f"{_HADOOP}endpoint.region", region)
    # It would write each object to a file first, through a file system that `fs.file.impl` may have
    # replaced (the runner does). What a checkpoint holds is small.
    conf.setdefault(f"{_HADOOP}fast.upload.buffer", "array")
    if _has_connector(conf):
        return conf
    jars = pinned()
    paths = [_home(jars) / jar.file for jar in jars]
    if not all(path.exists() for path in paths):
        raise JarError(
            "A --state on S3 needs Hadoop's S3 connector, which Spark does not bring along. Run "
            "`headrace pipeline prepare --s3` once (13 MB from Maven Central), or name its jars in "
            "spark.jars or spark.jars.packages under [spark]."
        )
    named = [jar for jar in conf.get("spark.jars", "").split(",") if jar]
    return conf | {"spark.jars": ",".join([*named, *map(str, paths)])}


def export_settings(conf: Mapping[str, str]) -> None:
    """Give what Spark's keys say of S3 to the rest of this process, which reads variables."""
    for key, variable in _VARIABLES.items():
        value = conf.get(f"{_HADOOP}{key}")
        if value and key == "endpoint" and "://" not in value:
            is_plain = conf.get(f"{_HADOOP}connection.ssl.enabled") == "false"
            value = f"{'http' if is_plain else 'https'}://{value}"
        if value:
            os.environ[variable] = value


def _has_connector(conf: Mapping[str, str]) -> bool:
    # Under spark-submit its options and spark-defaults.conf name jars, too, which is not seen here.
    is_submitted = "SPARK_ENV_LOADED" in os.environ
    is_named = any(_CONNECTOR in conf.get(key, "") for key in _JAR_KEYS)
    return is_submitted or is_named or any(_spark_jars().glob(f"{_CONNECTOR}-*.jar"))


def _check_hadoop(jars: list[Jar]) -> None:
    wanted = next(jar.version for jar in jars if jar.artifact == _CONNECTOR)
    found = [path.stem.rpartition("-")[2] for path in _spark_jars().glob("hadoop-client-api-*.jar")]
    if found != [wanted]:
        raise JarError(
            f"The pinned S3 connector is for Hadoop {wanted}, and this Spark has "
            f"{', '.join(found) or 'none'}. Name the connector of that version in "
            "spark.jars.packages under [spark]."
        )


def _spark_jars() -> Path:
    return Path(pyspark.__file__).parent / "jars"


def _home(jars: list[Jar]) -> Path:
    """Named by what is in it: other pins are another directory."""
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()
    return cache_home() / f"s3a-{digest[:16]}"
