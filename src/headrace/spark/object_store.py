"""Objects in an S3 bucket, with the part of pathlib's interface that states and lake tables need.

Endpoint, region and credentials come from the variables that AWS's own tools read. An object
appears whole or not at all, and is durable once the server has answered; so there is no renaming.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEMES: Final = ("s3", "s3a")
_URL: Final = re.compile(r"s3a?://(?P<bucket>[^/]+)/+(?P<key>[^/].*)", re.IGNORECASE)
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")  # such as NoSuchBucket
_PATIENCE_SECS: Final = 60  # of all attempts of a request; one may take half of it
_CONDITIONAL_SECS: Final = 8  # a lock must know in time that it was not renewed

T = TypeVar("T")


class StoreError(OSError):
    """What an object store answered, or that it did not; the message names the object."""


class ConditionFailed(StoreError):
    """A write was made conditional on an object that is not, or is no longer, as it was said."""


@dataclass(frozen=True)
class S3Path:
    """An object, or what a directory would be: the objects whose keys begin with this one.

    Pickles. `mkdir`, `absolute` and the like are there so that a place can be a path or this.
    """

    bucket: str
    key: str

    @classmethod
    def of(cls, url: str) -> S3Path | None:
        """None if it does not name something in a bucket."""
        found = _URL.fullmatch(url)
        return cls(found["bucket"], found["key"].strip("/")) if found else None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> S3Path:
        return S3Path(self.bucket, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> S3Path:
        return S3Path(self.bucket, self.key.rpartition("/")[0])

    @property
    def hadoop_url(self) -> str:
        """As Hadoop's connector calls it."""
        return f"s3a://{self.bucket}/{self.key}"

    def absolute(self) -> S3Path:
        return self

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """A bucket has no directories."""

    def read_bytes(self) -> bytes:
        import obstore

        return self._do(lambda store: bytes(obstore.get(store, self.key).bytes()))

    def read_text(self, encoding: str) -> str:
        return self.read_bytes().decode(encoding)

    def read_tagged(self) -> tuple[bytes, str]:
        """With the entity tag that a conditional write names."""
        import obstore

        def read(store: S3Store) -> tuple[bytes, str]:
            found = obstore.get(store, self.key)
            return bytes(found.bytes()), str(found.meta["e_tag"])

        return self._do(read, _CONDITIONAL_SECS)

    def write_bytes(self, data: bytes | memoryview) -> None:
        """A large object goes in parts, and appears with the last."""
        import obstore

        self._do(lambda store: obstore.put(store, self.key, data))

    def write_if(self, tag: str | None, data: bytes) -> str:
        """Write only over the object of this tag, or where there is none yet; the new tag.

        ConditionFailed if it is another. That can also be this very write: if its answer is lost,
        the library repeats the request.
        """
        import obstore

        mode: Any = "create" if tag is None else {"e_tag": tag}
        options: Any = {"mode": mode, "use_multipart": False}
        return self._do(
            lambda store: str(obstore.put(store, self.key, data, **options)["e_tag"]),
            _CONDITIONAL_SECS,
        )

    def unlink(self, missing_ok: bool = False) -> None:
        """S3 does not say whether there was such an object."""
        import obstore

        self._do(lambda store: obstore.delete(store, self.key))

    def names(self) -> tuple[list[str], list[str]]:
        """The objects right below, and what would be directories."""
        import obstore

        def names(store: S3Store) -> tuple[list[str], list[str]]:
            found = obstore.list_with_delimiter(store, f"{self.key}/")
            # Hadoop marks an empty directory by an object with its name and a slash.
            paths = [each["path"] for each in found["objects"] if each["path"] != self.key]
            below = [path.rpartition("/")[2] for path in paths]
            return below, [path.rpartition("/")[2] for path in found["common_prefixes"]]

        return self._do(names)

    def remove_tree(self) -> None:
        """Every object below."""
        import obstore

        def remove(store: S3Store) -> None:
            for entries in obstore.list(store, f"{self.key}/"):
                obstore.delete(store, [entry["path"] for entry in entries])

        self._do(remove)

    def _do(self, what: Callable[[S3Store], T], patience_secs: int = _PATIENCE_SECS) -> T:
        with _as_file_errors(self):
            return what(_store(self.bucket, endpoint(), patience_secs))


def endpoint() -> str | None:
    """Of a server other than AWS's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def store_options(url: str) -> dict[str, str] | None:
    """The options that the Delta library needs for a table on S3; the rest it finds itself."""
    if not url.startswith("s3://"):
        return None
    options = {"aws_region": region()}
    if place := endpoint():
        options["aws_endpoint"] = place
        options["allow_http"] = str(place.startswith("http://")).lower()
    return options


@lru_cache(maxsize=16)
def _store(bucket: str, place: str | None, patience_secs: int) -> S3Store:
    from datetime import timedelta

    from obstore.store import S3Store

    other: dict[str, Any] = {"endpoint": place} if place else {}
    return S3Store(
        bucket,
        region=region(),
        client_options={
            "allow_http": (place or "").startswith("http://"),
            "timeout": timedelta(seconds=patience_secs / 2),
        },
        retry_config={"retry_timeout": timedelta(seconds=patience_secs)},
        **other,
    )


@contextmanager
def _as_file_errors(path: S3Path) -> Iterator[None]:
    """The library's errors as those of files, in one line without the answer's XML."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist.") from None
    except (AlreadyExistsError, PreconditionError) as error:
        raise ConditionFailed(f"{path} is not as expected: {_line(error)}") from error
    except (BaseError, OSError) as error:
        raise StoreError(f"{path}: {_line(error)}") from error


def _line(error: Exception) -> str:
    said = str(error).partition("\n\nDebug source")[0]
    sentence = " ".join(said.partition("<?xml")[0].split())
    code = _CODE.search(said)
    return f"{sentence} {code[1]}" if code else sentence
