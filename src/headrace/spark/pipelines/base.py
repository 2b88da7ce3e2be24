"""What every pipeline is made of: a typed configuration, a run, and a function that starts it."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.spark.local_paths import PlaceError, local_path
from headrace.spark.object_store import S3Path
from headrace.spark.pipelines import config_checks
from headrace.spark.places import Place, names_in, place_of

# A batch of wide rows must fit into Spark's usual heap of 1 GiB, several times over.
BYTES_PER_BATCH = 64 * 1024 * 1024
DEFAULT_STATE_DIR = "data/pipelines"
RESETS_FILE = "resets"
_STREAM_IN_BUCKET = re.compile(r"/[^/]+/[^/]+")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class ConfigError(ValueError):
    """The configuration is wrong; the message says where."""


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of every pipeline. In a stack, environment variables give the addresses."""

    server: str = msgspec.field(
        default_factory=lambda: os.environ.get("DS_SERVER_URL", "http://localhost:4437")
    )
    token: str = ""
    progress: str = "/pipelines/progress"  # the stream for it; empty for none
    exactly_once: bool = True  # off only to show what it is for

    def __post_init__(self) -> None:
        if self.progress and not _STREAM_IN_BUCKET.fullmatch(self.progress):
            raise ValueError(f"progress must be /bucket/stream, or empty, not {self.progress!r}.")
        for name in self.__struct_fields__:
            config_checks.check(name, getattr(self, name))

    def check_run(self, run: Run) -> None:
        """Raise ConfigError, before Spark starts, if its keys do not go together in a run."""


def local_postgres() -> str:
    """The database of the stack, or the one its variable names."""
    default = "postgresql://postgres:password@localhost:54321/durable_streams"
    return os.environ.get("POSTGRES_URL", default)


@dataclass(frozen=True)
class Run:
    """How a pipeline runs: until there is nothing left, or for ever; and where its state is."""

    once: bool
    state_dir: Place

    def __post_init__(self) -> None:
        if isinstance(self.state_dir, Path):
            object.__setattr__(self, "state_dir", local_path("state_dir", str(self.state_dir)))

    @property
    def checkpoint(self) -> Place:
        return self.state_dir / "checkpoint"

    @property
    def has_begun(self) -> bool:
        """Whether the checkpoint has the plan of a batch."""
        return bool(names_in(self.checkpoint / "offsets"))

    def query_id(self) -> str | None:
        """The id that Spark gave the checkpoint's query; None without a checkpoint."""
        try:
            return str(json.loads((self.checkpoint / "metadata").read_text("utf-8"))["id"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def producer(self, name: str) -> str:
        """The producer `name` of this state. After a reset batches count from 0 again, which the
        server refuses of a producer that it knows: each reset therefore makes another one."""
        resets = self.resets()
        return f"{name}.{resets}" if resets else name

    def resets(self) -> int:
        """How often the state was reset."""
        try:
            return int((self.state_dir / RESETS_FILE).read_text("utf-8"))
        except FileNotFoundError:
            return 0

    def start(self, writer: DataStreamWriter, name: str, every_secs: int = 0) -> StreamingQuery:
        """Start `writer` with this run's trigger and checkpoint.

        For ever means a new batch as soon as the last is done: sources wait for data themselves,
        so an idle pipeline costs nothing and the first record waits for no clock. With
        `every_secs` batches begin no more often.
        """
        if isinstance(self.checkpoint, S3Path):
            place = self.checkpoint.hadoop_url
        else:
            self.checkpoint.mkdir(parents=True, exist_ok=True)
            place = str(self.checkpoint.resolve())
        ready = writer.queryName(name).option("checkpointLocation", place)
        if self.once:
            return ready.trigger(availableNow=True).start()
        return ready.trigger(processingTime=f"{every_secs} seconds").start()


def state_dir(given: str) -> Place:
    """The place that --state names."""
    try:
        return place_of("--state", given)
    except PlaceError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class Pipeline:
    """A pipeline by name. `start` returns its running query."""

    name: str
    summary: str
    config: type[PipelineConfig]
    start: Callable[[SparkSession, Any, Run], StreamingQuery]
    may_be_on_s3: bool = False  # its state

    def configure(self, document: Mapping[str, Any]) -> PipelineConfig:
        """The configuration from its table of a TOML file, checked."""
        known = self.config.__struct_fields__
        fields = msgspec.structs.fields(self.config)
        default = next((field.default for field in fields if field.name == "streams"), ())
        try:
            config_checks.check_known(document, known)
            given = {key: _value(key, value) for key, value in document.items()}
            config_checks.check_selection(given, known, default)
            return msgspec.convert(given, self.config, strict=True)
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigError(f"[{self.name}] {error}") from None


@dataclass(frozen=True)
class ConfigFile:
    """A TOML file: one table per pipeline, and `[spark]` with Spark's own keys."""

    pipelines: Mapping[str, Any]
    spark: dict[str, str]

    @classmethod
    def read(cls, path: Path | None) -> ConfigFile:
        if path is None:
            return cls({}, {})
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8 at byte {error.start}.") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}.") from None
        spark = document.pop("spark", {})
        if not isinstance(spark, dict):
            raise ConfigError("spark must be a table: [spark]")
        _refuse_unknown(document)
        return cls(document, dict(_spark_keys(_expanded(spark))))

    def of(self, pipeline: Pipeline) -> PipelineConfig:
        table = self.pipelines.get(pipeline.name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{pipeline.name} must be a table: [{pipeline.name}]")
        return pipeline.configure(table)


def _value(key: str, value: Any) -> Any:
    try:
        return _expanded(value)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def _refuse_unknown(tables: Iterable[str]) -> None:
    from headrace.spark.pipelines import names

    for table in tables:
        if table not in names():
            known = ", ".join(names())
            close = difflib.get_close_matches(table, [*names(), "spark"], n=1)
            hint = f" Did you mean [{close[0]}]?" if close else ""
            raise ConfigError(f"[{table}] is not a pipeline; tables are {known} and [spark].{hint}")


def _spark_keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Spark's keys have dots, which unquoted are tables in tables to TOML."""
    for key, value in table.items():
        if not f"{prefix}{key}.".startswith("spark."):
            raise ConfigError(f"[spark] {prefix}{key}: Spark's own keys begin with spark.")
        if isinstance(value, Mapping):
            yield from _spark_keys(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield prefix + key, str(value).lower()
        elif isinstance(value, str | int | float):
            yield prefix + key, str(value)
        else:
            raise ConfigError(f"[spark] {prefix}{key} must be a text, a number or a boolean.")


def _expanded(value: Any) -> Any:
    """`${NAME}` in a text is a variable of the environment: secrets need not be in files."""
    if isinstance(value, str):
        return _VARIABLE.sub(_variable, value)
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _expanded(item) for key, item in value.items()}
    return value


def _variable(match: re.Match[str]) -> str:
    try:
        return os.environ[match[1]]
    except KeyError:
        raise ConfigError(f"The variable {match[1]} is not set.") from None
