"""States and lake tables on S3, against a real server: what is there counts once, and is locked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from itertools import count
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.client import Client
from headrace.spark.driver_notes import DriverNote
from headrace.spark.lake.archives import find_archive
from headrace.spark.lake.delta_tables import delta_table, is_delta
from headrace.spark.lake.parquet_files import LakeError, write_files
from headrace.spark.lake.table_commits import DeltaLake
from headrace.spark.local_paths import PlaceError
from headrace.spark.object_store import S3Path, StoreError
from headrace.spark.offset_log import Planned, planned, put_back
from headrace.spark.options import OptionError
from headrace.spark.pipelines import archive
from headrace.spark.pipelines.base import ConfigError, Run
from headrace.spark.pipelines.progress import DEAD, RUNNING, STOPPED, Progress, read_progress
from headrace.spark.pipelines.runner import PipelineSpec, run_pipelines
from headrace.spark.pipelines.s3_lock import S3Lock
from headrace.spark.pipelines.state_lock import locked
from headrace.spark.places import directories_in, names_in, place_of, write_whole
from headrace.spark.runtime import s3a
from headrace.spark.sources.lake import LakeSink
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.spark.s3_server import S3Server, between, variables

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("session", pa.string()), ("day", pa.date32()), ("n", pa.int64())])
_numbers = count()
_DEADLINE_SECS = 60.0
_LEASE_SECS = 0.6
_RUN_SECS = 240.0


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def place(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Path:
    """A place of its own in a bucket."""
    use(monkeypatch, s3.url)
    (S3Path("tests", "bucket")).write_bytes(b"there must be one")
    return S3Path("tests", f"{next(_numbers)}")


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name, value in variables(url).items():
        monkeypatch.setenv(name, value)


# --- places --------------------------------------------------------------------------------------


def test_a_url_of_s3_is_a_place_in_a_bucket() -> None:
    for url in ("s3://b/c/d", "s3a://b/c/d/", "S3://b//c/d"):
        assert place_of("--state", url) == S3Path("b", "c/d")
    assert S3Path("b", "c/d").hadoop_url == "s3a://b/c/d"
    for url in ("s3://", "s3://b", "s3a://b/"):
        with pytest.raises(PlaceError, match=r"--state: .* Write s3://bucket/path"):
            place_of("--state", url)
    with pytest.raises(PlaceError, match=r"scheme gs, which is not supported.*or s3://bucket/path"):
        place_of("--state", "gs://b/c")


def test_objects_are_found_by_the_names_they_were_given(place: S3Path) -> None:
    assert names_in(place) == []
    odd = place / "é %41" / "x=a%2Fb"
    write_whole(odd, "1")
    write_whole(place / "file", "2")
    assert odd.read_text("utf-8") == "1"
    assert place.names() == (["file"], ["é %41"])
    assert directories_in(place) == [place / "é %41"]
    place.remove_tree()
    with pytest.raises(FileNotFoundError, match="x=a%2Fb does not exist"):
        odd.read_bytes()


def test_wrong_credentials_are_one_sentence(place: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    other = S3Path("other-bucket", place.key)  # not the client that another test has made
    with pytest.raises(StoreError, match=rf"^{other}/note: .*403[^\n]* SignatureDoesNotMatch$"):
        (other / "note").read_bytes()
    with pytest.raises(ConfigError, match="--state cannot be used: "), locked(other):
        pass


# --- state ---------------------------------------------------------------------------------------


def test_notes_progress_and_the_plan_of_a_batch_are_kept(place: S3Path) -> None:
    run = Run(True, place)
    before = run.has_begun
    note = DriverNote(run.checkpoint / "lake.json")
    assert note.read() is None
    note.write({"batch": 3})
    assert note.read() == {"batch": 3}
    for number in range(3):
        write_whole(run.checkpoint / "offsets" / str(number), f"plan {number}")
        write_whole(run.checkpoint / "commits" / str(number), "")
    assert (before, run.has_begun) == (False, True)
    kept = planned(run.checkpoint)
    assert kept == Planned(2, ("plan 1", "plan 2"))
    put_back(run.checkpoint, Planned(1, ("plan 0", "plan 1")))
    assert sorted(names_in(run.checkpoint / "offsets")) == ["0", "1"]
    assert names_in(run.checkpoint / "commits") == ["0"]
    assert read_progress(place) is None
    Progress("archive", 1, state=RUNNING, updated_at=2e9).write(place)
    told = read_progress(place)
    assert told is not None
    assert told.state == RUNNING
    Progress("archive", os.getpid(), state=RUNNING, updated_at=1.0).write(place)
    told = read_progress(place)
    assert told is not None
    assert told.state == DEAD


def test_status_and_reset_reach_a_state(place: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(verb: str, *more: str, state: S3Path = place) -> tuple[int, str]:
        result = CliRunner().invoke(app, [verb, *more, "--state", str(state)])
        return result.exit_code, result.output

    run = Run(True, place / "archive")
    assert command("status") == (1, f"headrace: no pipeline has run under {place}.\n")
    Progress("archive", 1, state=STOPPED, rows=7).write(run.state_dir)
    write_whole(run.checkpoint / "offsets" / "0", "plan")
    code, said = command("status")
    assert code == 0
    assert "7 rows" in said
    with locked(run.state_dir):
        code, said = command("reset", "archive", "--yes")
        assert code == 2
        assert "is in use by the process" in said
    assert command("reset", "archive", "--yes")[0] == 0
    assert not run.has_begun
    assert read_progress(run.state_dir) is None
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    code, said = command("status", state=S3Path("status-bucket", place.key))
    assert (code, said.count("\n")) == (1, 1)


def test_what_cannot_have_its_state_there_is_refused(
    place: S3Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.spark.pipelines import sessions

    spec = PipelineSpec(sessions.PIPELINE, sessions.Config(), Run(True, place))
    with pytest.raises(ConfigError, match=r"is on S3, where only archive, .*Give sessions a"):
        run_pipelines([spec])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)
    spec = PipelineSpec(archive.PIPELINE, archive.Config(), Run(True, place))
    with pytest.raises(ConfigError, match="headrace pipeline prepare --s3"):
        run_pipelines([spec])
    assert names_in(place) == []


# --- the lock ------------------------------------------------------------------------------------


def test_a_state_that_is_in_use_is_refused_and_free_afterwards(place: S3Path) -> None:
    told = rf"{place} is in use by the process {os.getpid()} on"
    with (
        S3Lock(place / "lock", lease_secs=_LEASE_SECS),
        pytest.raises(ConfigError, match=told),
        S3Lock(place / "lock", lease_secs=_LEASE_SECS),
    ):
        pass
    with locked(place):
        pass


def test_a_lock_that_nobody_renews_is_taken_and_missed_by_its_holder(place: S3Path) -> None:
    reasons: list[str] = []
    missed = threading.Event()

    def lost(reason: str) -> None:
        reasons.append(reason)
        missed.set()

    paused = S3Lock(place / "lock", lease_secs=6000, on_lost=lost)
    paused.__enter__()
    with S3Lock(place / "lock", lease_secs=_LEASE_SECS):
        assert not paused._write(paused._tag)  # as when it wakes
        paused.__exit__()
        with pytest.raises(ConfigError, match="in use"), S3Lock(place / "lock", lease_secs=3):
            pass
    with S3Lock(place / "lock", lease_secs=_LEASE_SECS, on_lost=lost):
        (place / "lock").write_bytes((place / "lock").read_bytes().replace(b'"beat":', b'"beat":9'))
        taken = S3Path(place.bucket, f"{place.key}/lock")
        body, tag = taken.read_tagged()
        taken.write_if(tag, body.replace(b'"token":"', b'"token":"other'))
        assert missed.wait(_DEADLINE_SECS)
    assert reasons == [f"another run has taken {place}/lock"]


_HOLD = """
import sys
from headrace.spark.object_store import S3Path
from headrace.spark.pipelines.s3_lock import S3Lock
with S3Lock(S3Path("tests", sys.argv[1]), lease_secs=3):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_process_killed_on_this_machine_is_free_at_once(place: S3Path) -> None:
    path = place / "lock"
    command = [sys.executable, "-c", _HOLD, path.key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="in use"), S3Lock(path, lease_secs=3):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with S3Lock(path, lease_secs=6000):  # nobody waits for that
        pass


def test_a_lock_is_ours_if_only_the_answer_was_lost(
    s3: S3Server, place: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def loses(method: str, path: str) -> bool:
        if method != "PUT" or len(lost) > 4:
            return False
        lost.append(path)
        return True

    with between(s3.url, loses) as url:
        use(monkeypatch, url)
        with S3Lock(place / "lock", lease_secs=6000) as lock:
            assert lost
            assert lock._write(lock._tag)
        with S3Lock(place / "lock", lease_secs=6000):
            pass


def test_a_server_that_ignores_conditions_is_refused(
    s3: S3Server, place: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for header in ("if-none-match", "if-match"):
        with between(s3.url, lambda method, path: False, ignores=header) as url:
            use(monkeypatch, url)
            with (
                pytest.raises(ConfigError, match="ignores the conditions of a write"),
                S3Lock(place / header),
            ):
                pass


# --- lake tables ---------------------------------------------------------------------------------


def commit(lake: DeltaLake, batch: int, *numbers: int) -> bool:
    rows = [{"session": f"a/{n} %é", "day": date(2026, 11, 19), "n": n} for n in numbers]
    batches = [pa.RecordBatch.from_pylist(rows, SCHEMA)]
    files = write_files(
        lake.data_dir, f"p-{batch}", batches, lake.partition_by, keep_partition_columns=False
    )
    return lake.commit(SCHEMA, "query", batch, files)


def stored(lake: DeltaLake) -> list[int]:
    rows = delta_table(lake.path).to_pyarrow_table().to_pylist()
    assert all(row["session"] == f"a/{row['n']} %é" for row in rows)
    return sorted(row["n"] for row in rows)


@pytest.mark.parametrize("partition_by", [("day",), ("session", "day")])
def test_a_batch_counts_once(place: S3Path, partition_by: tuple[str, ...]) -> None:
    lake = DeltaLake(place / "table", partition_by)
    lake.check(SCHEMA)
    assert commit(lake, 0, 1, 2)
    assert not commit(lake, 0, 1, 2)
    mark = lake.mark(0)
    assert commit(lake, 1, 3)
    assert stored(lake) == [1, 2, 3]
    assert lake.lost("query", mark) is None
    with pytest.raises(LakeError, match="partitioned by"):
        DeltaLake(lake.path, ("n",)).check(SCHEMA)
    found = find_archive(str(lake.path))
    assert found is not None
    found.merge_files()
    assert stored(lake) == [1, 2, 3]


def test_a_commit_whose_answer_is_lost_has_been_made(
    s3: S3Server, place: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def loses(method: str, path: str) -> bool:
        is_commit = method == "PUT" and "/_delta_log/" in path
        if is_commit and path not in lost:
            lost.append(path)
            return True
        return False

    with between(s3.url, loses) as url:
        use(monkeypatch, url)
        lake = DeltaLake(place / "table", ("day",))
        for batch in range(3):
            assert commit(lake, batch, batch)
    use(monkeypatch, s3.url)
    assert len(lost) >= 4  # of the table's creation, and of each batch
    assert stored(lake) == [0, 1, 2]
    assert not commit(lake, 2, 2)
    assert stored(lake) == [0, 1, 2]


def test_what_is_not_supported_there_is_refused_by_name(place: S3Path) -> None:
    rows = StructType([StructField("n", LongType())])
    table = str(place / "table")
    with pytest.raises(OptionError, match="an Iceberg table on S3 is not supported"):
        LakeSink({"path": table, "tableFormat": "iceberg"}).writer(rows, overwrite=False)
    with pytest.raises(ConfigError, match="an Iceberg table on S3 is not supported"):
        archive.PIPELINE.configure({"table": table, "format": "iceberg"})
    LakeSink({"path": table}).writer(rows, overwrite=False)
    assert find_archive(table) is None
    assert names_in(place) == []


# --- a pipeline ----------------------------------------------------------------------------------


BATCH = 50  # messages
_CONFIG = """
[spark]
spark.driver.extraJavaOptions = "-XX:TieredStopAtLevel=1"
[archive]
server = "{server}"
progress = ""
streams = ["orders"]
table = "{place}/lake"
messages_per_batch = {batch}
shards = 1
merge_files_secs = 0
[replay]
server = "{server}"
progress = ""
table = "{place}/older"
to = "{{stream}}-again"
[compact]
server = "{server}"
progress = ""
bucket = "agents"
messages_min = 1
"""


class Pipelines:
    """`headrace pipeline run` as a process, with its states and its tables on S3."""

    def __init__(self, home: Path, server: str, endpoint: str, place: S3Path) -> None:
        self.table, self.state, self._log = place / "lake", place / "state", home / "log"
        self._env = os.environ | variables(endpoint)
        self._config = home / "pipelines.toml"
        self._config.write_text(_CONFIG.format(server=server, place=place, batch=BATCH))

    def run(self, *names: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headrace.cli", "pipeline", "run", *names]
        command += ["--config", str(self._config), "--state", self.state.hadoop_url]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, "--master", "local[2]"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def rows(self) -> int:
        if not is_delta(self.table):
            return 0
        return int(delta_table(self.table).to_pyarrow_dataset().count_rows())

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")


def test_pipelines_that_are_killed_go_on_without_loss_or_doubles(
    s3: S3Server, place: S3Path, serve: Serve, tmp_path: Path
) -> None:
    """And of every tenth object that they write the answer is lost."""
    s3a.fetch()
    server = serve()
    written = count()
    older_table(place / "older")

    def loses(method: str, path: str) -> bool:
        return method == "PUT" and next(written) % 10 == 9

    with Client(server.url) as client, between(s3.url, loses) as endpoint:
        orders = client.stream("orders")
        orders.create("application/json")
        orders.append_json(*range(100))
        client.bucket("agents").create()
        agent = client.stream("/agents/a")
        agent.create("application/json")
        agent.append_json({"type": "t", "key": "k", "operation": "set", "value": 1})
        pipelines = Pipelines(tmp_path, server.url, endpoint, place)
        with _killed(pipelines.run("archive")) as driver:
            eventually(
                lambda: pipelines.rows() >= BATCH or driver.poll() is not None,
                "a batch in the table",
                _RUN_SECS,
                poll_secs=0.1,
            )
            assert driver.poll() is None, pipelines.log
        orders.append_json(*range(100, 110))
        with _killed(pipelines.run("archive", "replay", "compact", "--once")) as again:
            assert again.wait(_RUN_SECS) == 0, pipelines.log
        assert list(client.stream("old-again").read_json()) == ["a", "b", "c"]
        assert json.loads(agent.snapshot().data)
    rows = delta_table(pipelines.table).to_pyarrow_dataset()
    found = duckdb.from_arrow(rows).aggregate("value, count(*)").fetchall()
    assert {int(value): n for value, n in found} == dict.fromkeys(range(110), 1)
    ended = [read_progress(state) for state in directories_in(pipelines.state)]
    assert [(each.pipeline, each.state) for each in ended if each] == [
        ("archive", STOPPED),
        ("compact", STOPPED),
        ("replay", STOPPED),
    ]


def older_table(place: S3Path) -> None:
    """As an earlier archive left it."""
    columns = {"stream": "old", "day": "2026-11-01", "content_type": "application/json"}
    rows = [{**columns, "shard": 0, "offset": f"{n}", "value": f'"{n}"'} for n in "abc"]
    lake = DeltaLake(place, archive.PARTITIONS)
    batch = pa.RecordBatch.from_pylist(rows)
    files = write_files(place, "p", [batch], lake.partition_by, keep_partition_columns=False)
    assert lake.commit(batch.schema, "earlier", 0, files)


@contextmanager
def _killed(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """In the end, with Java and its workers."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
