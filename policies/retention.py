"""Which versions of a run are kept, and the removal of what killed processes left behind.

Both change the run directory and so need the run's lock. A kill at any point leaves a valid run:
of a version that goes, the manifest goes first, and a folder without one is no version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from policies.errors import ConfigError
from policies.file_store import TEMPORARY_PREFIX
from policies.manifest import TornManifestError
from policies.metrics_log import MetricsLog
from policies.run_directory import EVALUATIONS, MANIFEST, TIMINGS, VERSIONS, RunDirectory
from policies.run_lock import LOCK, RunLock


def versions_to_keep(
    versions: Iterable[int], *, keep_last: int, best: Collection[int] = (), every: int = 100
) -> set[int]:
    """Returns those of `versions` that retention keeps.

    Args:
        versions: numbers of published versions.
        keep_last: this many of the highest; at least 1, so that the newest always stays.
        best: versions kept whatever their age: the best by evaluation, the target of a report.
        every: multiples of it are kept (so is 0); 0 keeps no such milestones.
    """
    if keep_last < 1 or every < 0:
        raise ConfigError(f"keep_last={keep_last}, every={every}: keep 1 or more, every 0 or more")
    ordered = sorted(set(versions))
    kept = set(ordered[-keep_last:])
    return kept | {v for v in ordered if v in best or (every and v % every == 0)}


def prune(
    run: RunDirectory,
    lock: RunLock,
    metrics_log: MetricsLog,
    *,
    keep_last: int = 20,
    best: Collection[int] = (),
    every: int = 100,
) -> list[int]:
    """Removes old versions, never the newest nor an unpublished one above it.

    Their metrics are written to the metrics log first, where they stay.

    Args:
        run: the run.
        lock: its lock, held.
        metrics_log: the log of its metrics.
        keep_last: see `versions_to_keep`, also for `best` and `every`.
        best: kept whatever their age.
        every: milestones.

    Returns:
        The removed versions, ascending.
    """
    lock.check_covers(run.url)
    newest = run.newest_version()
    if newest is None:
        return []
    metrics_log.update()
    present = [version for version in run.version_numbers() if version <= newest.version]
    keep = versions_to_keep(present, keep_last=keep_last, best=best, every=every)
    removed = [version for version in present if version not in keep | {newest.version}]
    for version in removed:
        folder = f"{VERSIONS}/{version:08d}"
        run.store.remove(f"{folder}/{MANIFEST}")
        run.store.sync(folder)
        run.store.remove_folder(folder)
    return removed


def sweep_orphans(run: RunDirectory, lock: RunLock) -> list[str]:
    """Removes what killed processes left: temporary files, and files that no manifest names.

    Versions above the newest are left alone, since their writers may be at work.

    Args:
        run: the run.
        lock: its lock, held.

    Returns:
        The names removed, relative to the run.
    """
    lock.check_covers(run.url)
    removed = [
        f"{folder}/{name}" if folder else name
        for folder in ("", EVALUATIONS)
        for name in run.store.names(folder)
        # Another driver may be trying for the lock at this moment.
        if name.startswith(TEMPORARY_PREFIX) and LOCK not in name
    ]
    newest = run.newest_version()
    last = newest.version if newest else -1
    for version in run.version_numbers():
        if version <= last:
            removed += _orphans_of(run, version, newest=version == last)
    for name in removed:
        run.store.remove(name)
    return removed


def _orphans_of(run: RunDirectory, version: int, *, newest: bool) -> list[str]:
    folder = f"{VERSIONS}/{version:08d}"
    names = run.store.names(folder)
    temporary = [name for name in names if name.startswith(TEMPORARY_PREFIX)]
    try:
        info = run.find_version(version)
    except TornManifestError:
        info = None
    if newest or info is None:
        # A late attempt at the newest version may still be reading the files it wrote.
        return [f"{folder}/{name}" for name in temporary]
    named = {MANIFEST, TIMINGS} | {record.name for record in info.files}
    return [f"{folder}/{name}" for name in names if name not in named]
