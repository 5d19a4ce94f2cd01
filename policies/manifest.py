"""The manifest of a version: the JSON that says which files make it up and how it came about.

A manifest is read by programs other than its writer, on other machines, perhaps after a crash or
from a stranger's run: its text is checked before anything in it is used. It is canonical (sorted
keys, shortest numbers, no clock time), so equal versions have equal bytes and equal hashes.

    {"env_steps": 8192, "evaluation": null, "files": [{"name": "weights-0f3a….safetensors",
     "sha256": "…", "size": 20480}], "metrics": {…}, "parent": {"sha256": "…", "version": 1},
     "policies": {…}, "schema_version": 1, "version": 2}
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import orjson

from policies.errors import RunError

SCHEMA_VERSION = 1
"""The form of manifest this program writes, and the only one it reads."""

MAX_MANIFEST_BYTES = 32 * 2**20
"""A larger manifest is refused unread."""

MAX_FILE_BYTES = 64 * 2**30
"""A manifest that lists a larger file is refused."""

MAX_RECENT_RETURNS = 1_000_000
"""A manifest that lists more returns of recent episodes is refused."""

FILE_SUFFIXES = (".safetensors", ".arrow")

_HASH = re.compile(r"[0-9a-f]{64}")
_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_FILE_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,127})-([0-9a-f]{16})(\.[a-z]+)")


class TornManifestError(RunError):
    """A manifest is not whole JSON: its writer was killed, or is still writing."""


@dataclass(frozen=True)
class FileRecord:
    """One content-named file of a version, as its manifest lists it.

    Attributes:
        name: `<stem>-<first 16 hex digits of sha256>.<safetensors|arrow>`, without any folder.
        size: bytes.
        sha256: of the content, 64 lower-case hex digits.

    Raises:
        ValueError: the name could leave its folder or does not follow from the hash, or a field
            has a wrong type or size.
    """

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not isinstance(self.sha256, str) or not _HASH.fullmatch(self.sha256):
            raise ValueError(f"sha256 {_shown(self.sha256)} is not 64 lower-case hex digits")
        match = _FILE_NAME.fullmatch(self.name) if isinstance(self.name, str) else None
        if match is None or match[3] not in FILE_SUFFIXES:
            raise ValueError(
                f"file name {_shown(self.name)} is not <stem>-<hash>.safetensors|arrow"
            )
        if match[2] != self.sha256[:16]:
            raise ValueError(f"file name {_shown(self.name)} does not follow from its sha256")
        if type(self.size) is not int or not 0 <= self.size <= MAX_FILE_BYTES:
            raise ValueError(f"size {_shown(self.size)} of {self.name} is not within 0 to 64 GiB")

    @classmethod
    def of(cls, stem: str, suffix: str, data: bytes) -> FileRecord:
        """Returns the record of new content.

        Args:
            stem: what the file is, for example "weights"; letters, digits, `_`, `.` and `-`.
            suffix: one of `FILE_SUFFIXES`.
            data: the whole content.
        """
        if not _STEM.fullmatch(stem):
            raise ValueError(f"stem {_shown(stem)} may hold only letters, digits, '_', '.' and '-'")
        digest = hashlib.sha256(data).hexdigest()
        return cls(f"{stem}-{digest[:16]}{suffix}", len(data), digest)

    @classmethod
    def from_json(cls, value: object) -> FileRecord:
        """Returns the record of an entry of a manifest's `files`; ValueError if malformed."""
        if not isinstance(value, Mapping) or set(value) != {"name", "size", "sha256"}:
            raise ValueError(f"{_shown(value)} is not an object of name, size and sha256")
        return cls(value["name"], value["size"], value["sha256"])

    @property
    def stem(self) -> str:
        """What the file is: its name without hash and suffix ("weights")."""
        return self.name.rpartition("-")[0]

    def to_json(self) -> dict[str, Any]:
        """Returns the entry for a manifest's `files`."""
        return {"name": self.name, "size": self.size, "sha256": self.sha256}


def canonical_json(value: object) -> bytes:
    """Encodes plain data as JSON that is equal, byte for byte, for equal data.

    Keys are sorted, floats take their shortest exact form, and numpy scalars become numbers.

    Raises:
        ValueError: a number is not finite, a key is no string, or a value is not JSON; the message
            names its place ("metrics.loss").
    """
    options = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    try:
        return orjson.dumps(_plain(value, ""), option=options)
    except orjson.JSONEncodeError as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error


def encode_manifest(
    version: int, facts: Mapping[str, Any], parent: Mapping[str, Any] | None
) -> bytes:
    """Returns the bytes of a version's manifest.

    Args:
        version: its number.
        facts: the rest: `files` (FileRecords or their JSON), `policies`, `metrics`, `evaluation`
            and whatever else the learner wants to keep; each of these four may be left out.
        parent: `{"version": n, "sha256": hash of its manifest's bytes}`, or None for a first one.

    Raises:
        ValueError: something is malformed; the message names it.
    """
    given = dict(facts)
    for key, value in (
        ("version", version),
        ("schema_version", SCHEMA_VERSION),
        ("parent", parent),
    ):
        if given.setdefault(key, value) != value:
            raise ValueError(
                f"{key} is {_shown(given[key])} in the manifest and {value} by its place"
            )
    files = [
        entry if isinstance(entry, FileRecord) else FileRecord.from_json(entry)
        for entry in given.get("files", ())
    ]
    given["files"] = [entry.to_json() for entry in sorted(files, key=lambda file: file.name)]
    given["policies"] = given.get("policies") or {}
    given["metrics"] = given.get("metrics") or {}
    given.setdefault("evaluation", None)
    data = canonical_json(given)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest has {len(data):,} bytes; {MAX_MANIFEST_BYTES:,} are allowed"
        )
    _check(version, orjson.loads(data))
    return data


def decode_manifest(version: int, data: bytes, url: str) -> dict[str, Any]:
    """Returns the manifest in `data`, checked, for the version it was found under.

    Raises:
        TornManifestError: it is not a whole JSON object.
        RunError: its schema version is unknown, or its content is malformed; the message names
            `url` and what is wrong.
    """
    try:
        manifest = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise TornManifestError(f"{url} is torn or damaged: {error}") from error
    if not isinstance(manifest, dict):
        raise RunError(f"{url} is not a manifest: it holds no JSON object")
    schema_version = manifest.get("schema_version")
    if schema_version != SCHEMA_VERSION or type(schema_version) is not int:
        raise RunError(
            f"{url} has schema_version {_shown(schema_version)}, this program reads "
            f"{SCHEMA_VERSION}: use the program that wrote it, or a newer one"
        )
    try:
        _check(version, manifest)
    except ValueError as error:
        raise RunError(f"{url} is not a valid manifest: {error}") from error
    return manifest


def manifest_sha256(data: bytes) -> str:
    """Returns the hash by which a child names its parent's manifest."""
    return hashlib.sha256(data).hexdigest()


def _check(version: int, manifest: dict[str, Any]) -> None:
    if type(manifest.get("version")) is not int or manifest["version"] != version:
        raise ValueError(f"version is {_shown(manifest.get('version'))}, expected {version}")
    _check_parent(version, manifest.get("parent", ""))
    files = manifest.get("files")
    if not isinstance(files, list):
        raise ValueError("files is not a list")
    names = [FileRecord.from_json(entry).name for entry in files]
    if len(set(names)) < len(names):
        raise ValueError("files lists a name twice")
    for key in ("policies", "metrics"):
        if not isinstance(manifest.get(key), dict):
            raise ValueError(f"{key} is not an object")
    evaluation = manifest.get("evaluation", "")
    if not isinstance(evaluation, dict | None):
        raise ValueError("evaluation is neither an object nor null")
    mean = (evaluation or {}).get("mean")
    if mean is not None and not _is_finite_number(mean):
        raise ValueError(f"evaluation.mean {_shown(mean)} is neither a finite number nor null")
    _check_progress(manifest)
    _check_policies(manifest["policies"], names)
    _check_rollouts(manifest.get("rollouts"), names)


def _check_progress(manifest: dict[str, Any]) -> None:
    steps = manifest.get("env_steps", 0)
    if type(steps) is not int or not 0 <= steps < 2**63:
        raise ValueError(f"env_steps {_shown(steps)} is not a whole number within 0 to 2^63 - 1")
    returns = manifest.get("recent_returns", [])
    if not isinstance(returns, list) or len(returns) > MAX_RECENT_RETURNS:
        raise ValueError(f"recent_returns is not a list of up to {MAX_RECENT_RETURNS:,} numbers")
    for index, value in enumerate(returns):
        if not _is_finite_number(value):
            raise ValueError(f"recent_returns[{index}] {_shown(value)} is not a finite number")


def _check_policies(policies: dict[str, Any], names: list[str]) -> None:
    for policy_id, policy in policies.items():
        if not isinstance(policy, dict):
            raise ValueError(f"policy {_shown(policy_id)} is not an object")
        for key in ("weights", "optimizer"):
            if key in policy and policy[key] not in names:
                raise ValueError(
                    f"{key} {_shown(policy[key])} of policy {_shown(policy_id)} is not in files"
                )


def _check_rollouts(rollouts: object, names: list[str]) -> None:
    if rollouts is None:
        return
    if not isinstance(rollouts, dict) or set(rollouts) != {"file", "shards"}:
        raise ValueError("rollouts is neither null nor an object of file and shards")
    if rollouts["file"] not in names:
        raise ValueError(f"rollouts file {_shown(rollouts['file'])} is not in files")
    if not isinstance(rollouts["shards"], dict):
        raise ValueError("rollouts shards is not an object")
    for shard, sha256 in rollouts["shards"].items():
        if not isinstance(sha256, str) or not _HASH.fullmatch(sha256):
            raise ValueError(
                f"sha256 {_shown(sha256)} of shard {_shown(shard)} is not 64 hex digits"
            )


def _is_finite_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(cast(float, value))


def _check_parent(version: int, parent: object) -> None:
    if parent is None:
        if version != 0:
            raise ValueError(f"version {version} has no parent")
        return
    if not isinstance(parent, Mapping) or set(parent) != {"version", "sha256"}:
        raise ValueError("parent is neither null nor an object of version and sha256")
    if type(parent["version"]) is not int or not 0 <= parent["version"] < version:
        raise ValueError(f"parent version {_shown(parent['version'])} is not below {version}")
    if not isinstance(parent["sha256"], str) or not _HASH.fullmatch(parent["sha256"]):
        raise ValueError(f"parent sha256 {_shown(parent['sha256'])} is not 64 hex digits")


def _plain(value: object, place: str) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place or 'the value'} is {value}, which is not a finite number")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{place or 'the value'} has the key {_shown(key)}, not a string")
        return {
            str(key): _plain(item, f"{place}.{key}" if place else str(key))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise ValueError(f"{place or 'the value'} is a {type(value).__name__}, not JSON data")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
