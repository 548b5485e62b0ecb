"""How to reach an object store: endpoint, credentials, region, retries and deadlines."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.errors import StoreError

SCHEMES = ("file", "s3", "gs", "http", "https")
_SLOWEST = 1 << 17  # bytes a second that a slow link transfers; what is large has more time


@dataclasses.dataclass(frozen=True)
class Storage:
    """How to reach a store in a bucket. What is not given comes from the environment, as for other tools.

    Attributes:
        endpoint_url: The address of an S3-compatible server; by default `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, or
            Amazon's. For `gs://` that of an emulator, by default `STORAGE_EMULATOR_HOST`; one for each process.
        region: The region; by default `AWS_REGION` or `AWS_DEFAULT_REGION`.
        profile: A profile in the shared credentials file.
        key: An access key; by default `AWS_ACCESS_KEY_ID`, the shared credentials file, or the machine's role.
        secret: The secret access key that goes with it.
        token: The session token that goes with it, if there is one.
        anonymous: Whether to send no credentials.
        retries: How often a request that fails is sent again.
        deadline: After how many seconds without an answer there is an error. Large files have longer.

    Example:
        >>> from sonde import store
        >>> store.Storage(endpoint_url="http://127.0.0.1:9000", deadline=10).deadline
        10
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    key: str | None = None
    secret: str | None = dataclasses.field(default=None, repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    anonymous: bool = False
    retries: int = 5
    deadline: float = 60.0

    def __post_init__(self) -> None:
        if (self.key is None) != (self.secret is None):
            raise ValueError("Storage: key= and secret= go together")
        if self.retries < 0 or self.deadline <= 0:
            raise ValueError(
                f"Storage: retries must be at least 0 and deadline positive, got {self.retries} and {self.deadline}"
            )

    def kvstore(self, url: str) -> Any:
        """TensorStore's spec of a key-value store.

        Raises:
            StoreError: The URL has a scheme that is not known, or no bucket.
        """
        scheme, _, rest = url.partition("://")
        if scheme == "memory":
            raise StoreError(f"{url!r} does not keep what is written to it: give a folder or a bucket")
        if scheme not in SCHEMES:
            known = ", ".join(f"{one}://" for one in SCHEMES)
            raise StoreError(f"{url!r} has the scheme {scheme!r}, which is not known; give a path or one of {known}")
        bucket, _, path = rest.partition("/")
        if not bucket and scheme != "file":
            raise StoreError(f"{url!r} names no {'bucket' if scheme in ('s3', 'gs') else 'server'}")
        if scheme == "gs":
            self._set_google_endpoint()
        if scheme != "s3":
            return url
        spec = {"driver": "s3", "bucket": bucket, "path": path}
        endpoint = self.endpoint_url or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        region = self.region or _environment("AWS_REGION", "AWS_DEFAULT_REGION")
        if endpoint:
            # Other servers need a name of a region, but most do not mind which.
            spec |= {"endpoint": endpoint.rstrip("/"), "aws_region": region or "us-east-1"}
        elif region:
            spec["aws_region"] = region
        return spec | {"aws_credentials": self._credentials()}

    def _set_google_endpoint(self) -> None:
        """TensorStore takes another address than Google's from the environment alone, when it first needs it."""
        host = self.endpoint_url or _environment("STORAGE_EMULATOR_HOST")
        if host is None:
            return
        address = (host if "://" in host else f"http://{host}").rstrip("/")
        used = os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", address)
        if used != address:
            raise StoreError(f"this process reaches gs:// at {used}, so not at {address}: start another one")
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "anonymous")  # emulators take any

    def _credentials(self) -> dict[str, str]:
        if self.anonymous:
            return {"type": "anonymous"}
        if self.key is not None:
            told = {
                "aws_access_key_id": self.key,
                "aws_secret_access_key": self.secret,
                "aws_session_token": self.token,
            }
            lines = "".join(f"{name} = {value}\n" for name, value in told.items() if value)
            return _profile("default", [_private_file(f"[default]\n{lines}")])
        if self.profile is None and _environment("AWS_ACCESS_KEY_ID"):
            return {"type": "environment"}
        named = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
        files = [os.path.expanduser(_environment(name) or usual) for name, usual in named.items()]
        files = [file for file in files if os.path.exists(file)]
        if files:
            return _profile(self.profile or _environment("AWS_PROFILE") or "default", files)
        if self.profile is not None:
            raise StoreError(f"Storage(profile={self.profile!r}): there is no shared credentials file")
        return {"type": "default"}

    def resources(self) -> Mapping[str, Any]:
        """TensorStore's settings for requests."""
        retries = {"max_retries": self.retries, "initial_delay": "200ms", "max_delay": "5s"}
        return {"s3_request_retries": retries, "gcs_request_retries": retries}

    def seconds(self, nbytes: int) -> float:
        """How long an operation may take that transfers so many bytes."""
        return self.deadline + nbytes / _SLOWEST


def _profile(name: str, files: list[str]) -> dict[str, str]:
    """Credentials from files. TensorStore does not find the usual ones, and needs two names."""
    return {"type": "profile", "profile": name, "credentials_file": files[0], "config_file": files[-1]}


def _environment(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


@functools.cache
def _private_file(text: str) -> str:
    """A file that only this user can read: TensorStore takes keys from files or the environment, not as arguments."""
    folder = _private_folder()
    file = Path(folder.name, f"credentials{len(list(Path(folder.name).iterdir()))}")
    file.touch(mode=0o600)
    file.write_text(text)
    return str(file)


@functools.cache
def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="sonde-")
