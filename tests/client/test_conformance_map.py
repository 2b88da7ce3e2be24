"""Every case of upstream's client harness has a test of ours that states the same fact."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
CASES_OF_THE_HARNESS = 269


def test_every_case_of_the_harness_names_a_test_that_is_there() -> None:
    lines = (HERE / "conformance_cases.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    cases = {(family, case) for family, case, _ in rows}
    assert len(rows) == len(cases) == CASES_OF_THE_HARNESS
    sources = "\n".join(path.read_text() for path in sorted(HERE.glob("test_*.py")))
    written = set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
    assert {test for _, _, test in rows} - written == set()
