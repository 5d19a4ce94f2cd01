"""A run's folder: its layout, its newest version, and the one step that commits a version.

    RUN/  config.json   run.lock   metrics.jsonl   evaluations/   result.json
          versions/00000012/{manifest.json, weights-<hash>.safetensors, rollout-<hash>.arrow, ...}

A version is immutable. Its data files are written first, in any number of attempts; it exists from
the moment `manifest.json` does, which is created last and by exactly one writer. Whoever finds it
present adopts it, so retries, zombie workers and reruns of a whole job do no harm.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from policies import version_files
from policies.errors import ConfigError, RunError
from policies.file_store import FileStore, split_url
from policies.manifest import (
    MAX_MANIFEST_BYTES,
    FileRecord,
    TornManifestError,
    canonical_json,
    decode_manifest,
    encode_manifest,
    manifest_sha256,
)
from policies.version_files import DamagedFileError

if TYPE_CHECKING:
    import pyarrow as pa

    from policies.run_lock import RunLock

CONFIG = "config.json"
MANIFEST = "manifest.json"
VERSIONS = "versions"
METRICS = "metrics.jsonl"
RESULT = "result.json"
EVALUATIONS = "evaluations"
TIMINGS = "timings.json"

MAX_JSON_BYTES = 32 * 2**20
_TORN_RETRIES = 20
_TORN_WAIT_S = 0.05


@dataclass(frozen=True)
class VersionInfo:
    """A published version.

    Attributes:
        version: its number, from 0.
        path: path or URL of its folder: what stages of a pipeline hand on.
        manifest: its manifest, checked.
        sha256: the hash of the manifest's bytes, which names everything the version consists of.
    """

    version: int
    path: str
    manifest: dict[str, Any]
    sha256: str

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The records of the version's files, sorted by name."""
        return tuple(FileRecord.from_json(entry) for entry in self.manifest["files"])

    def file(self, stem: str) -> FileRecord:
        """Returns the record of the one file with this stem ("weights"); RunError if none."""
        found = [record for record in self.files if record.stem == stem]
        if len(found) != 1:
            raise RunError(f"{self.path}/{MANIFEST} lists {len(found)} files named {stem}, not 1")
        return found[0]


class RunDirectory:
    """The folder of one run, on any fsspec file system.

        run = RunDirectory.create("runs/cartpole", config)
        weights = run.write_arrays(0, "weights", policy.get_weights())
        manifest, adopted = run.publish(0, {"files": [weights], "metrics": {}})
        newest = run.newest_version()
        arrays = run.read_arrays(newest.version, newest.file("weights"))

    Constructing one touches no file. Errors of the file system are a `RunError` of one line.

    Attributes:
        url: absolute path or URL, valid in other processes on other working directories.
        store: the files below it.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.store = FileStore(url)
        self.url = self.store.url

    @classmethod
    def create(cls, url: str | os.PathLike[str], config: Mapping[str, Any]) -> RunDirectory:
        """Starts a run: makes its folder and writes `config.json`.

        Raises:
            ConfigError: there is a run already, or the folder cannot be written.
        """
        run = cls(url)
        try:
            run.store.make_folder(VERSIONS)
            created = run.store.create(CONFIG, canonical_json(config))
        except RunError as error:
            raise ConfigError(f"{error}; choose a run directory that can be written") from error
        if not created:
            raise ConfigError(f"{run.url} holds a run already: resume it or choose another folder")
        run.store.sync("")
        return run

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> RunDirectory:
        """Opens an existing run; ConfigError if there is none."""
        run = cls(url)
        if not run.exists():
            raise ConfigError(f"{run.url} is not a run directory: it holds no {CONFIG}")
        return run

    @classmethod
    def of_version(cls, path: str) -> tuple[RunDirectory, int]:
        """Returns the run and the number that a version's path stands for; ConfigError if none."""
        folder, name = split_url(path)
        url, versions = split_url(folder)
        number = version_number(name)
        if versions != VERSIONS or number is None:
            raise ConfigError(f"{path} is not a version: expected RUN/{VERSIONS}/00000012")
        return cls(url), number

    def exists(self) -> bool:
        """Returns whether the folder holds a run."""
        return self.store.size(CONFIG) is not None

    def config(self) -> dict[str, Any]:
        """Returns the run's configuration as it was stored."""
        return self.read_json(CONFIG)

    def replace_config(self, config: Mapping[str, Any]) -> None:
        """Stores another configuration, atomically (a resume may raise a limit)."""
        self.store.replace(CONFIG, canonical_json(config))

    def read_json(self, name: str) -> dict[str, Any]:
        """Returns the object in a JSON file of the run; RunError if missing or not an object."""
        data = self.store.read(name, MAX_JSON_BYTES)
        if data is None:
            raise RunError(f"{self.store.url_of(name)} is missing")
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise RunError(f"{self.store.url_of(name)} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise RunError(f"{self.store.url_of(name)} holds no JSON object")
        return value

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a JSON file of the run ("result.json"), atomically."""
        self.store.replace(name, canonical_json(value))

    def version_path(self, version: int) -> str:
        """Returns the path or URL of a version's folder, whether or not it exists."""
        return self.store.url_of(f"{VERSIONS}/{version:08d}")

    def version_numbers(self) -> list[int]:
        """Returns the numbers of all version folders, ascending: also of unpublished ones."""
        return list(self._descending())[::-1]

    def newest_version(self) -> VersionInfo | None:
        """Returns the highest version whose manifest is whole, or None before the first.

        One listing and, mostly, one read. Torn manifests and folders without one are passed over.

        Raises:
            RunError: the highest whole manifest is of an unknown schema or malformed. The message
                names it and the newest good version.
        """
        for version in self._descending():
            try:
                info = self.find_version(version)
            except TornManifestError:
                continue
            except RunError as error:
                raise self._with_way_out(error) from error
            if info is not None:
                return info
        return None

    def newest_good_version(self) -> int | None:
        """Returns the highest version whose manifest and files are all as they should be."""
        for version in self._descending():
            try:
                info = self.find_version(version)
                if info is not None:
                    self._verify(info)
                    return version
            except RunError:
                continue
        return None

    def find_version(self, version: int) -> VersionInfo | None:
        """Returns a version, or None when it is not published.

        Raises:
            TornManifestError: the manifest is not whole JSON.
            RunError: it is malformed or of an unknown schema.
        """
        name = f"{VERSIONS}/{version:08d}/{MANIFEST}"
        data = self.store.read(name, MAX_MANIFEST_BYTES)
        if data is None:
            return None
        manifest = decode_manifest(version, data, self.store.url_of(name))
        return VersionInfo(version, self.version_path(version), manifest, manifest_sha256(data))

    def read_version(self, version: int) -> VersionInfo:
        """Returns a published version.

        Raises:
            RunError: it has no manifest, or the manifest is damaged or of an unknown schema. The
                message names the file and the newest good version.
        """
        try:
            info = self.find_version(version)
            if info is None:
                raise RunError(f"{self.version_path(version)}/{MANIFEST} is missing")
        except RunError as error:
            raise self._with_way_out(error) from error
        return info

    def read_manifest(self, version: int) -> dict[str, Any]:
        """Returns the manifest of a published version; raises as `read_version`."""
        return self.read_version(version).manifest

    def verify_version(self, version: int) -> VersionInfo:
        """Returns a version after hashing each of its files; raises as `read_arrays`."""
        info = self.read_version(version)
        try:
            self._verify(info)
        except RunError as error:
            raise self._with_way_out(error) from error
        return info

    def write_arrays(self, version: int, stem: str, arrays: Mapping[str, np.ndarray]) -> FileRecord:
        """Writes arrays into a version's folder: see `version_files.write_arrays`."""
        return version_files.write_arrays(self._folder_to_write(version), stem, arrays)

    def write_arrow(self, version: int, stem: str, table: pa.Table | pa.RecordBatch) -> FileRecord:
        """Writes a table into a version's folder: see `version_files.write_arrow`."""
        return version_files.write_arrow(self._folder_to_write(version), stem, table)

    def read_arrays(self, version: int, record: FileRecord) -> dict[str, np.ndarray]:
        """Returns writable arrays sorted by name.

        Raises:
            RunError: the file is missing or damaged; names it and the newest good version.
        """
        try:
            return version_files.read_arrays(self._folder_to_read(version), record)
        except RunError as error:
            raise self._with_way_out(error) from error

    def read_arrow(self, version: int, record: FileRecord) -> pa.Table:
        """Returns a version's table; raises as `read_arrays`."""
        try:
            return version_files.read_arrow(self._folder_to_read(version), record)
        except RunError as error:
            raise self._with_way_out(error) from error

    def publish(self, version: int, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Commits a version, or adopts the one that is there.

        Of several processes that publish one version exactly one wins; the others return what it
        published. Fills in `version`, `schema_version` and `parent` (the version before).

        Args:
            version: its number. All but 0 need the version before it.
            manifest: `files` (records that `write_arrays` returned, or their JSON), `policies`,
                `metrics`, `evaluation` and further facts. No clock times: equal runs have equal
                bytes.

        Returns:
            The manifest as stored, and whether it is another writer's (adopted).

        Raises:
            ValueError: the manifest is malformed or holds a number that is not finite.
            RunError: a listed file or the parent is missing, or the store fails.
        """
        folder = f"{VERSIONS}/{version:08d}"
        present = self._find_patiently(version)
        if present is not None:
            return present.manifest, True
        data = encode_manifest(version, manifest, self._parent_of(version))
        stored = decode_manifest(version, data, self.store.url_of(f"{folder}/{MANIFEST}"))
        for entry in stored["files"]:
            name = f"{folder}/{entry['name']}"
            if self.store.size(name) != entry["size"]:
                url = self.store.url_of(name)
                raise DamagedFileError(f"{url} must be written before its manifest is published")
        named = [f"{folder}/{entry['name']}" for entry in stored["files"]]
        if self.store.create(f"{folder}/{MANIFEST}", data, after=named):
            self.store.sync(VERSIONS)
            return stored, False
        present = self._find_patiently(version)
        if present is None:
            raise RunError(f"{self.store.url_of(folder)}/{MANIFEST} was removed while publishing")
        return present.manifest, True

    def remove_torn_manifests(self, lock: RunLock) -> list[str]:
        """Removes unreadable manifests above the newest version; they block its successor.

        Args:
            lock: the run's lock, held. Without it the file might be one that is being written.

        Returns:
            The paths removed.
        """
        lock.check_covers(self.url)
        removed = []
        for version in self._descending():
            try:
                if self._find_patiently(version) is not None:
                    break
            except TornManifestError:
                name = f"{VERSIONS}/{version:08d}/{MANIFEST}"
                self.store.remove(name)
                removed.append(self.store.url_of(name))
            except RunError as error:
                raise self._with_way_out(error) from error
        return removed

    def _descending(self) -> Iterator[int]:
        # Lazily: mostly the first of hundreds is the one wanted.
        names = self.store.names(VERSIONS)
        for name in sorted(names, key=lambda name: (len(name), name), reverse=True):
            number = version_number(name)
            if number is not None:
                yield number

    def _find_patiently(self, version: int) -> VersionInfo | None:
        # Where neither links nor atomic creation exist, a manifest is torn while it is written.
        for _ in range(_TORN_RETRIES):
            try:
                return self.find_version(version)
            except TornManifestError:
                time.sleep(_TORN_WAIT_S)
        return self.find_version(version)

    def _parent_of(self, version: int) -> dict[str, Any] | None:
        if version == 0:
            return None
        parent = self.find_version(version - 1)
        if parent is None:
            raise RunError(
                f"version {version} of {self.url} cannot be published: "
                f"{self.version_path(version - 1)}/{MANIFEST} is missing"
            )
        return {"version": parent.version, "sha256": parent.sha256}

    def _verify(self, info: VersionInfo) -> None:
        folder = self._folder_to_read(info.version)
        for record in info.files:
            version_files.read_verified(folder, record)

    def _folder_to_read(self, version: int) -> str:
        # Its files are opened by this path, whose last folders a stranger's run may have as links.
        self.store.check_inside(f"{VERSIONS}/{version:08d}")
        return self.version_path(version)

    def _folder_to_write(self, version: int) -> str:
        # Writing makes folders as needed, and so would bring a deleted run back as a stump.
        if not self.store.has_root():
            raise RunError(f"{self.url} was removed")
        return self._folder_to_read(version)

    def _with_way_out(self, error: RunError) -> RunError:
        good = self.newest_good_version()
        if good is None:
            return type(error)(f"{error}; the run has no good version")
        message = f"{error}; the newest good version is {good} ({self.version_path(good)})"
        if any(self._has_manifest(version) for version in self.version_numbers() if version > good):
            message += ": remove the folders of higher versions to go on from it"
        return type(error)(message)

    def _has_manifest(self, version: int) -> bool:
        return self.store.size(f"{VERSIONS}/{version:08d}/{MANIFEST}") is not None


def version_number(name: str) -> int | None:
    """Returns the number of a version's folder by its name ("00000012" is 12), else None."""
    if not (name.isascii() and name.isdigit()):
        return None
    number = int(name)
    return number if name == f"{number:08d}" else None
