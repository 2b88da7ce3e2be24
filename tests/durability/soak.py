"""The long tier: `make soak`, an hour by default, and a report of what was run and found.

The same checks as the short tier, for as long as there is time: crash-disk seeds that no run has
seen, more of them with clocks that are set, disks that fill up and chains of forks, every bit of
rot, kills, power cuts, full disks, recorded histories, producer races, live delivery; then a start
with 10 GiB in 1,000 streams and a directory of 100,000 streams. Exits 1 on a violation.

    python -m tests.durability.soak --minutes 60
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import httpx

from headrace.testing.history import Recorder, lines_as_log
from headrace.testing.linearizability import violation
from headrace.testing.power_cut import CannotCutPower, PowerCutDisk
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from tests.durability import rot
from tests.durability.campaign import Campaign
from tests.durability.crash_machine import Violation, run_seed, small_windows
from tests.durability.full_disk import FullDisk
from tests.durability.modes import ALL_MODES, DURABLE_MODES, KEPT_MODES, settings
from tests.durability.producer_races import Race, run_race
from tests.durability.scale import recovery_at_size, streams_at_scale
from tests.durability.test_live import Followed, kill
from tests.durability.troubled_campaign import TroubledCampaign

TEXT = {"content-type": "text/plain"}
PATH = "/v1/stream/soak"
# How the time is divided; what is not here takes what it takes.
SHARES = {
    "seeds": 0.2,
    "troubled": 0.15,
    "kills": 0.12,
    "cuts": 0.08,
    "trouble": 0.16,
    "full": 0.04,
    "histories": 0.08,
    "races": 0.06,
    "live": 0.06,
}
SEEDS_AT_ONCE = 50
RESULTS = Path(__file__).parents[2] / "bench" / "results"


@dataclass
class Soak:
    """What was run, line by line, and what was wrong."""

    minutes: float
    scale: float
    lines: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def until(self, share: str, of: int = 1) -> Callable[[], bool]:
        """True while this part, one of `of` like it, has time."""
        deadline = time.monotonic() + 60 * self.minutes * SHARES[share] / of
        return lambda: time.monotonic() < deadline

    def say(self, what: str, count: str, wrong: list[str]) -> None:
        self.lines.append(f"| {what} | {count} | {len(wrong)} |")
        self.violations += [f"{what}: {sentence}" for sentence in wrong]
        print(f"{what}: {count}, {len(wrong)} violations", flush=True)


def try_seeds(first: int, *, is_troubled: bool = False) -> list[str]:
    logging.disable(logging.CRITICAL)
    found = []
    with small_windows():
        for seed in range(first, first + SEEDS_AT_ONCE):
            try:
                run_seed(seed, is_troubled=is_troubled)
            except Exception as wrong:  # whatever it is, the seed is worth a look
                found.append(f"seed {seed}: {type(wrong).__name__}: {wrong}")
    return found


def seeds(soak: Soak) -> None:
    _seeds(soak, "seeds", "crash-disk seeds", try_seeds)


def troubled(soak: Soak) -> None:
    """The same with a clock that is set between lives and within, full disks and fork chains."""
    what = "crash-disk seeds with clock steps, full disks and fork chains"
    _seeds(soak, "troubled", what, partial(try_seeds, is_troubled=True))


def _seeds(soak: Soak, share: str, what: str, attempt: Callable[[int], list[str]]) -> None:
    """Seeds from the time of day on, so that every run looks where none has looked."""
    first = number = int(time.time()) * 1000
    within = soak.until(share)
    wrong: list[str] = []
    workers = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        while within():
            end = number + 4 * workers * SEEDS_AT_ONCE
            for found in pool.map(attempt, range(number, end, SEEDS_AT_ONCE), chunksize=1):
                wrong += found
            number = end
    soak.say(what, f"{number - first:,} from {first} on", wrong)


def every_bit(soak: Soak) -> None:
    with small_windows():
        sound = rot.small_directory()
        expected = rot.look(sound.copy())
        wrong: list[str] = []
        counts = {"detected": 0, "harmless": 0}
        bits = (lambda at: range(8)) if soak.scale >= 1 else (lambda at: range(at % 8, at % 8 + 1))
        for damage in rot.flips(sound.files(), bits):
            try:
                counts[rot.judge(sound, expected, damage)] += 1
            except Violation as violation_found:
                wrong.append(str(violation_found))
    soak.say("rot, bits flipped", f"{sum(counts.values()):,}: {counts}", wrong)


def kills(soak: Soak, directory: Path) -> None:
    for mode in KEPT_MODES:
        within = soak.until("kills", len(KEPT_MODES))
        work = directory / f"kill-{mode}"
        work.mkdir()
        campaign = Campaign(settings(mode, work / "data"), work, seed=int(time.time()))
        while within() or not campaign.lives:
            campaign.live_and_die(kill)
        wrong = campaign.violations(campaign.examine())
        soak.say(f"kill -9, {mode}", _told(campaign, "kills"), wrong)


def cuts(soak: Soak, directory: Path) -> None:
    for mode in DURABLE_MODES:
        within = soak.until("cuts", len(DURABLE_MODES))
        work = directory / f"cut-{mode}"
        work.mkdir()
        try:
            with PowerCutDisk(work) as disk:
                campaign = Campaign(settings(mode, disk.path / "data"), work, int(time.time()))
                while within() or not campaign.lives:
                    campaign.live_and_die(partial(_cut, disk))
                    disk.restore()
                wrong = campaign.violations(campaign.examine())
                soak.say(f"power cuts, {mode}", _told(campaign, "cuts"), wrong)
        except CannotCutPower as reason:
            soak.lines.append(f"| power cuts, {mode} | not possible here: {reason} | |")


def trouble(soak: Soak, directory: Path) -> None:
    """Kills and power cuts with fork chains down to the limit, clock steps and full disks."""
    ends: dict[str, Callable[[PowerCutDisk, ServerProcess], None]] = {
        "kill -9": lambda _, server: kill(server),
        "power cuts": _cut,
    }
    for mode, (name, end) in product(DURABLE_MODES, ends.items()):
        within = soak.until("trouble", len(DURABLE_MODES) * len(ends))
        what = f"{name} with fork chains, clock steps and full disks, {mode}"
        work = directory / f"trouble-{mode}-{name.partition(' ')[0]}"
        work.mkdir()
        try:
            with PowerCutDisk(work) as disk:
                env = settings(mode, disk.path / "data")
                campaign = TroubledCampaign(env, work, seed=int(time.time()), disk=disk.path)
                while within() or not campaign.lives:
                    campaign.live_and_die(partial(end, disk))
                    if end is _cut:
                        disk.restore()
                wrong = campaign.violations(campaign.examine())
                soak.say(what, f"{_told(campaign, 'lives')}; {campaign.trouble}", wrong)
        except CannotCutPower as reason:
            soak.lines.append(f"| {what} | not possible here: {reason} | |")


def full(soak: Soak, directory: Path) -> None:
    """Lives on a disk that another process fills to its last byte, and kills in between."""
    for mode in DURABLE_MODES:
        within = soak.until("full", len(DURABLE_MODES))
        work = directory / f"full-{mode}"
        work.mkdir()
        try:
            with PowerCutDisk(work) as disk:
                campaign = FullDisk(mode, disk.path, work)
                while within() or not campaign.lives:
                    campaign.live()
                soak.say(f"full disks, {mode}", campaign.sentence, campaign.wrong)
        except CannotCutPower as reason:
            soak.lines.append(f"| full disks, {mode} | not possible here: {reason} | |")


def _cut(disk: PowerCutDisk, server: ServerProcess) -> None:
    disk.cut()
    server.kill()


def _told(campaign: Campaign, ends: str) -> str:
    return (
        f"{campaign.lives:,} {ends}, {campaign.acknowledged:,} appends and "
        f"{campaign.lifecycles.confirmed:,} creates, closes and deletes acknowledged"
    )


def histories(soak: Soak, directory: Path) -> None:
    for mode in ALL_MODES:
        within = soak.until("histories", len(ALL_MODES))
        operations = 0
        wrong: list[str] = []
        env = settings(mode, directory / f"history-{mode}")
        with ServerProcess(env, cwd=str(directory)) as server:
            round_number = 0
            while within() or not operations:
                path = f"{PATH}/history/{round_number}"
                httpx.put(server.url + path, headers=TEXT)
                recorders = [
                    Recorder(server.port, path, f"c{n}", 1500, 100 * round_number + n)
                    for n in range(8)
                ]
                for recorder in recorders:
                    recorder.start()
                for recorder in recorders:
                    recorder.join()
                final = httpx.get(server.url + path, params={"offset": "-1"})
                history = [operation for one in recorders for operation in one.history]
                operations += len(history)
                found = violation(history, lines_as_log(final.content))
                wrong += [found] if found else []
                round_number += 1
        soak.say(f"linearizability, {mode}", f"{operations:,} operations", wrong)


def races(soak: Soak, directory: Path) -> None:
    for mode in ALL_MODES:
        within = soak.until("races", len(ALL_MODES))
        attempts = 0
        wrong: list[str] = []
        env = settings(mode, directory / f"race-{mode}")
        with ServerProcess(env, cwd=str(directory)) as server:
            while within() or not attempts:
                path = f"{PATH}/race/{attempts}"
                httpx.put(server.url + path, headers=TEXT)
                race = Race()
                run_race(server.port, path, 8, 1000, race)
                with httpx.Client(base_url=server.url) as client:
                    stored = b"".join(one.content for one in catch_up(client, path)).decode()
                attempts += race.attempts
                wrong += race.violations(stored.splitlines())
        soak.say(f"producer races, {mode}", f"{attempts:,} attempts", wrong)


def live(soak: Soak, directory: Path) -> None:
    for mode in KEPT_MODES:
        within = soak.until("live", len(KEPT_MODES))
        work = directory / f"live-{mode}"
        work.mkdir()
        one = Followed(settings(mode, work / "data"), work)
        lives = 0
        while within() or not lives:
            one.live(kill)
            lives += 1
        stored = one.finish()
        wrong = one.checker.violations(stored.splitlines())
        wrong += [
            f"a follower saw {len(follower.text)} of {len(stored)} bytes, or others"
            for follower in one.followers
            if follower.text != stored or follower.fault
        ]
        delivered = len(stored.splitlines()) * len(one.followers)
        soak.say(f"live delivery, {mode}", f"{lives} kills, {delivered:,} messages", wrong)


def at_size(soak: Soak, directory: Path) -> None:
    """Start-up and memory at sizes that a test run has no time for."""
    found = recovery_at_size(directory / "large", soak.scale)
    soak.say("start-up at size, file-durable", found.sentence, found.wrong)
    for mode in DURABLE_MODES:
        many = streams_at_scale(mode, directory / f"many-{mode}", soak.scale)
        soak.say(f"many streams, {mode}", many.sentence, many.wrong)


def report(soak: Soak, began: datetime) -> str:
    took = (datetime.now(UTC) - began).total_seconds() / 60
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    lines = [
        "# Soak report",
        "",
        f"{began:%Y-%m-%d %H:%M} UTC, {took:.0f} minutes; {machine}, Python "
        f"{platform.python_version()}; load at the end {os.getloadavg()[0]:.1f}; "
        f"`python -m tests.durability.soak --minutes {soak.minutes:g}`",
        "",
        "| what | how much | violations |",
        "|---|---|---|",
        *soak.lines,
        "",
        f"**{len(soak.violations)} violations.**",
        *(f"- {sentence}" for sentence in soak.violations[:100]),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--report", type=Path, help="where to write the report")
    options = parser.parse_args()
    began = datetime.now(UTC)
    path: Path = options.report or RESULTS / f"soak-{began:%Y-%m-%d}.md"
    soak = Soak(options.minutes, min(1.0, options.minutes / 60))
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as name:
        directory = Path(name)
        parts: list[Callable[[], None]] = [
            partial(seeds, soak),
            partial(troubled, soak),
            partial(every_bit, soak),
            *(
                partial(part, soak, directory)
                for part in (kills, cuts, trouble, full, histories, races, live, at_size)
            ),
        ]
        try:
            for part in parts:
                part()
        finally:
            with suppress(OSError):
                path.write_text(report(soak, began))
    print(f"report: {path}")
    return 1 if soak.violations else 0


if __name__ == "__main__":
    sys.exit(main())
