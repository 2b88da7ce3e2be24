"""Options of a data source: text in any case, typed here, every mistake named on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

# Spark adds these itself: the path of load() and save(), and the place of a query's state.
_SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname"})


Choice = TypeVar("Choice", bound=str)


class OptionError(ValueError):
    """An option that is missing, unknown or makes no sense."""


class Options:
    """Typed access to the options of `source`, whatever case they were given in."""

    def __init__(self, source: str, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = sorted(self._given.keys() - {name.lower() for name in known} - _SPARK_OPTIONS)
        if unknown:
            raise OptionError(
                f"The data source {source} has no option {unknown[0]!r} here; it knows "
                f"{', '.join(sorted(known))}."
            )

    def text(self, name: str, default: str = "") -> str:
        return str(self._given.get(name.lower(), default))

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f"The option {name} is missing, such as {example}.")
        return value

    def choice(self, name: str, choices: tuple[Choice, ...]) -> Choice:
        """One of `choices`; the first if none is given."""
        value = self.text(name, choices[0])
        for choice in choices:
            if choice == value:
                return choice
        raise OptionError(f"The option {name} is one of {', '.join(choices)}, not {value!r}.")

    def names(self, name: str) -> tuple[str, ...]:
        """A comma list."""
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def number(self, name: str, default: int, *, least: int = 1) -> int:
        value = self.text(name, str(default))
        if not (value.isascii() and value.isdigit() and int(value) >= least):
            raise OptionError(f"The option {name} must be a whole number from {least}: {value!r}.")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"The option {name} must be true or false, not {value!r}.")
        return value == "true"
