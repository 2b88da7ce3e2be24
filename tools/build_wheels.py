"""Build the wheels, pure and compiled, and try each in an environment of its own.

    make wheels                      every Python of the classifiers that is found here
    python -m tools.build_wheels --python 3.12 --output dist

For each version: install the build tools from requirements/compile.txt, build the wheel with the
compiled modules, install it with requirements/run.txt alone into a clean environment, and let it
serve. The pure wheel is built once and tried on each version. Needs only the standard library.

A compiled wheel has the tag of this machine (`linux_x86_64`), which package indexes refuse: the
workflow in .github builds those for publication in containers that fit many distributions.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("pyproject.toml", "README.md", "LICENSE", "src")
# What a wheel must do: say which build it is, serve, store, answer, and end on a signal.
SMOKE = """
import subprocess, sys, urllib.request
from headrace.client import Client

server = subprocess.Popen(
    [sys.executable, "-m", "headrace.cli", "serve", "--port", "0"],
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
)
try:
    url = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
    root = url.split("/v1/")[0].rstrip("/")
    with Client(root) as client:
        stream = client.stream("smoke")
        stream.create()
        with stream.producer("p") as producer:
            for number in range(1000):
                producer.append_json(number)
        assert stream.read_json() == list(range(1000))
    assert b"<html" in urllib.request.urlopen(f"{root}/ui/").read()
finally:
    server.terminate()
    assert server.wait(30) in (0, -15), server.returncode
"""


class Failed(Exception):
    """A wheel was not built, or does not work; the message has the output."""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DS_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def classified_versions() -> list[str]:
    """The versions of Python that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = (re.fullmatch(r".*:: (3\.\d+)", line) for line in project["classifiers"])
    return [match[1] for match in found if match]


def interpreter(version: str) -> Path | None:
    """A Python of this version: on the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    on_path = shutil.which(f"python{version}")
    candidates = [*installed, *([Path(on_path)] if on_path else [])]
    return next((path for path in candidates if _is(path, version)), None)


def _is(python: Path, version: str) -> bool:
    # A shim on the PATH may stand for a version that is not installed.
    try:
        return run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == (
            version
        )
    except (Failed, OSError):
        return False


def environment(python: Path, at: Path, *locks: str) -> Path:
    """A new environment with what these locks pin; its Python."""
    run(python, "-m", "venv", at)
    made = at / "bin/python"
    for lock in locks:
        pinned = ROOT / "requirements" / lock
        run(made, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", pinned)
    return made


def build(python: Path, scratch: Path, *, compiled: bool) -> Path:
    """Build a wheel from a copy: the compiler writes next to the sources."""
    source, wheels = scratch / "source", scratch / "wheels"
    source.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    switch = {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "1"} if compiled else {}
    run(
        *(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", wheels, "."),
        cwd=source,
        **switch,
    )
    (wheel,) = wheels.glob("*.whl")
    return wheel


def smoke_test(python: Path, wheel: Path, at: Path, *, compiled: bool) -> None:
    made = environment(python, at, "run.txt")
    run(made, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    # Away from the sources, which must not be what is imported.
    version = run(at / "bin/headrace", "--version", cwd=at).strip()
    if version.endswith(", compiled") != compiled:
        raise Failed(f"{wheel.name} says {version!r}")
    run(made, "-c", SMOKE, cwd=at)
    print(f"  {wheel.name}: {version}, works with {python}", flush=True)


def make_wheels(versions: Iterable[str], output: Path) -> int:
    """How many versions of Python were there to build for."""
    output.mkdir(parents=True, exist_ok=True)
    pure: Path | None = None
    count = 0
    for version in versions:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not found here", flush=True)
            continue
        print(f"Python {version}: building", flush=True)
        count += 1
        with tempfile.TemporaryDirectory(prefix="headrace-wheels-") as temporary:
            scratch = Path(temporary)
            tools = environment(python, scratch / "tools", "run.txt", "compile.txt")
            for compiled in (False, True):
                at = scratch / ("compiled" if compiled else "pure")
                at.mkdir()
                if compiled or pure is None:
                    wheel = Path(shutil.copy(build(tools, at, compiled=compiled), output))
                    pure = pure if compiled else wheel
                else:
                    wheel = pure
                smoke_test(python, wheel, at / "environment", compiled=compiled)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", action="append", help="only this version; may be repeated")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    try:
        if not make_wheels(options.python or classified_versions(), options.output):
            sys.exit("None of these versions of Python is here.")
    except Failed as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
