"""`metrics.jsonl`: one line of numbers a version, derived from the manifests.

The manifests are the truth; the log is for people and plotting tools, and outlives the versions
that retention removes. A kill may leave a torn last line, which the next driver mends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from policies.manifest import TornManifestError, canonical_json
from policies.run_directory import METRICS, RunDirectory, VersionInfo

_MAX_LOG_BYTES = 2 * 2**30
_NOT_METRICS = {"schema_version", "version"}


def metrics_line(info: VersionInfo) -> bytes:
    """Returns a version's line of the log, newline included.

    One flat object, which pandas reads with `read_json(path, lines=True)`: `version`, the plain
    facts of the manifest (such as `env_steps`), then `metrics` and `evaluation` with nested keys
    joined by "/" ("learner/policy_loss", "evaluation/return_mean").
    """
    row: dict[str, Any] = dict(_flat("", info.manifest["metrics"]))
    row.update(_flat("evaluation/", info.manifest["evaluation"] or {}))
    # After the metrics of the round, which count its own env_steps under the same name.
    for key, value in info.manifest.items():
        if key not in _NOT_METRICS and isinstance(value, int | float | str):
            row[key] = value
    row["version"] = info.version
    return canonical_json(row)


class MetricsLog:
    """Keeps a run's `metrics.jsonl` up to date. Only the holder of the run's lock may use one."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._lines: dict[int, bytes] | None = None

    def update(self) -> list[int]:
        """Adds the versions published since the last call.

        The first call compares the whole log with the manifests that are left and mends it: torn
        lines, and lines of versions that were taken back, go. Later calls read only new manifests,
        and append where the store can.

        Returns:
            The versions whose lines were written, ascending.
        """
        if self._lines is None:
            return self._rebuild()
        new: dict[int, bytes] = {}
        while info := self._find(max([*self._lines, *new], default=-1) + 1):
            new[info.version] = metrics_line(info)
        if new:
            self._lines.update(new)
            if not self._run.store.append(METRICS, b"".join(new.values())):
                self._write_all()
        return list(new)

    def _rebuild(self) -> list[int]:
        stored = self._run.store.read(METRICS, _MAX_LOG_BYTES) or b""
        newest = self._run.newest_version()
        last = newest.version if newest else -1
        logged = {version: line for version, line in _whole_lines(stored) if version <= last}
        lines = dict(logged)
        for version in self._run.version_numbers():
            if version <= last and (info := self._find(version)):
                lines[version] = metrics_line(info)
        self._lines = dict(sorted(lines.items()))
        if b"".join(self._lines.values()) != stored:
            self._write_all()
        return [version for version, line in self._lines.items() if logged.get(version) != line]

    def _write_all(self) -> None:
        self._run.store.replace(METRICS, b"".join((self._lines or {}).values()))

    def _find(self, version: int) -> VersionInfo | None:
        try:
            return self._run.find_version(version)
        except TornManifestError:
            return None


def _whole_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for line in data.splitlines(keepends=True):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        version = row.get("version") if isinstance(row, dict) else None
        if line.endswith(b"\n") and type(version) is int and version >= 0:
            yield version, line


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}/", value)
        else:
            yield f"{prefix}{key}", value
