"""Public test doubles: servers to test against, and what their answers are checked with."""
