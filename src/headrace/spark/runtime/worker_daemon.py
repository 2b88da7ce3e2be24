"""The process that Spark forks its Python workers from, with what they need loaded.

Spark's own loads nothing, and every worker takes half a second of a core to do so, in every
executor one for each of its cores and for reading and writing.
"""

from __future__ import annotations

import gc
import importlib
import sys

from pyspark.daemon import manager

_NEEDED = ("pandas", "headrace.spark.sources.registry")  # the first by Spark, for Arrow's sake


def main(worker_module: str) -> None:
    for name in (worker_module, *_NEEDED):
        importlib.import_module(name)
    gc.freeze()  # workers collect after every task, and none of this is garbage
    manager()


if __name__ == "__main__":
    main(sys.argv[1])
