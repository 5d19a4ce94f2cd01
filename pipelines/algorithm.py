"""Training from Python: `Algorithm(config).train()` runs one round as a Beam job.

The command `pipelines.train` is this class with a loop around it.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any

from pipelines.newest_policy import NewestPolicy
from pipelines.run_settings import (
    DEFAULT_ALGO,
    checked,
    given_settings,
    learner_hints,
    new_run,
    refuse_used_folder,
    require_device,
    with_env_name,
)
from pipelines.runners import Job, runner_named, runs_in_memory
from policies import round_results, stored_run
from policies.config import AlgorithmConfig, config_dict
from policies.errors import ConfigError, RunError
from policies.metrics_log import MetricsLog
from policies.retention import prune, sweep_orphans
from policies.run_directory import RunDirectory, VersionInfo
from policies.run_lock import RunLock
from policies.training_run import forget_live_objects
from transforms.rounds import TrainRounds

PRUNE_EVERY = 10
MAX_ROUNDS_PER_JOB = 50
"""Rounds of one job at the most: beyond some hundreds Beam cannot translate a graph."""


class Algorithm(NewestPolicy):
    """Trains one run, and acts with its newest policy.

    It sets no signal handlers and leaves torch's threads as they are. Use it as a context manager,
    or call `close`, to release the run for others.

    Args:
        config: Settings: a config of the learner, or a mapping of its keys; default: the defaults.
            `env` may also be a class, or a function that makes an environment: one that can be
            imported is stored by its import path. Any other (of a notebook, a lambda) is stored as
            `caller/NAME-v0`, works on an in-process runner only, and has to be given again in
            `config` to resume the run elsewhere.
        algo: Name of the learner; default: ppo, or what the resumed run has.
        run_dir: Folder or URL of the run; default: a new temporary folder.
        resume: Go on with the run that `run_dir` holds, if any; only stop conditions, device and
            rounds per job may differ from it then.
        runner: Beam runner.
        pipeline_flags: Flags of Beam and of the runner.
        allow_import: Modules that a stored run may import; names in `config` need no permission.
        notify: Gets lines worth a user's attention.
        started: Unix time from which the seconds to the target count; default: now.

    Raises:
        ConfigError: The settings, the environment or the run directory are wrong.

    Example:
        >>> algorithm = Algorithm({"env": "CartPole-v1", "seed": 1}, run_dir="runs/cartpole")
        >>> while algorithm.train()["episode_return_mean"] < 400: pass
        >>> algorithm.compute_single_action(obs)
        0
    """

    def __init__(
        self,
        config: AlgorithmConfig | Mapping[str, Any] | None = None,
        *,
        algo: str | None = None,
        run_dir: str | None = None,
        resume: bool = False,
        runner: str = "DirectRunner",
        pipeline_flags: Sequence[str] = (),
        allow_import: Collection[str] = (),
        notify: Callable[[str], None] = lambda line: None,
        started: float | None = None,
    ) -> None:
        self._started = time.time() if started is None else started
        self._created = False
        directory = RunDirectory(tempfile.mkdtemp(prefix="beamrl-") if run_dir is None else run_dir)
        self._runner, self._flags, self._notify = runner, tuple(pipeline_flags), notify
        in_memory = runs_in_memory(runner_named(runner), self._flags)
        config = with_env_name(config, in_memory)
        given = given_settings(config)
        if resume and directory.exists():
            self.config, self.run = stored_run.open_run(directory, given, allow_import)
        else:
            self.config = checked(config, algo or DEFAULT_ALGO)
            try:
                self.run = new_run(directory, self.config, algo or DEFAULT_ALGO, runner, notify)
                self._created = True
            except ConfigError:
                # Of two drivers that resume an absent run at once, one finds the other's.
                if not (resume and directory.exists()):
                    raise
                self.config, self.run = stored_run.open_run(directory, given, allow_import)
        self.algo = self.run.algo
        if algo not in (None, self.algo):
            raise ConfigError(f"{directory.url} is a run of algo={self.algo}, not of {algo}")
        self.summary = round_results.RunSummary.of_log(directory, self.config.stop_return)
        self._jobs: dict[int, Job] = {}
        self._running: Job | None = None
        self._log = MetricsLog(directory)
        self._lock: RunLock | None = None
        self._newest: VersionInfo | None = None
        self._pruned = 0
        self.results: list[dict[str, Any]] = []
        self.rounds_made = 0

    # --- training ---------------------------------------------------------------------------

    @property
    def run_dir(self) -> str:
        """Absolute path or URL of the run directory."""
        return self.run.url

    def start(self) -> VersionInfo:
        """Takes the run's lock, clears what killed drivers left, and makes version 0 if needed.

        Returns:
            The newest version. `train` calls this itself.

        Raises:
            ConfigError: Another process trains the run.
        """
        if self._lock is None:
            require_device(self.config, self._runner)
            directory = self.run.directory
            self._lock = RunLock(directory.url, notify=self._notify).acquire()
            for path in directory.remove_torn_manifests(self._lock):
                self._notify(f"removed {path}, which was not written whole")
            sweep_orphans(directory, self._lock)
            self._newest = directory.newest_version() or self.run.publish_initial()
            self._log.update()
            # A killed driver may have published versions that the log lacked until now.
            self.summary = round_results.RunSummary.of_log(directory, self.config.stop_return)
            self._store_limits()
        return self.newest

    def _store_limits(self) -> None:
        """Keeps what this resume changed, so that the next one has the same stop conditions."""
        directory, config = self.run.directory, config_dict(self.config)
        stored = directory.config()
        if stored["config"] != config:
            directory.replace_config(stored | {"config": config})

    @property
    def newest(self) -> VersionInfo:
        """The newest version; the run must have one."""
        newest = self._newest or self.run.directory.newest_version()
        if newest is None:
            raise RunError(f"{self.run.url} has no version yet; call train() first")
        return newest

    def require_lock(self) -> None:
        """Raises RunError when another driver has taken the run over, whose files it now is."""
        assert self._lock is not None
        self._lock.check_covers(self.run.url)

    def stop_reason(self) -> str | None:
        """Name of the stop condition that the newest version meets, or None."""
        return self.run.stop_reason(self.newest)

    def train(self, rounds: int = 1) -> dict[str, Any]:
        """Runs up to `rounds` rounds, as one job (or jobs of 50).

        Returns:
            The result of the last round; `results` holds those of all rounds of this call. A run
            that has met a stop condition does nothing more; `stop_reason` in the result names it.

        Raises:
            ConfigError, RunError: What went wrong, in one line; the last good version stays.
        """
        if rounds < 1:
            raise ConfigError(f"train: rounds={rounds}, expected at least 1")
        self.start()
        self.results = []
        if (reason := self.stop_reason()) is not None:
            warnings.warn(
                f"nothing was trained: {self.run_dir} has met {reason}; restore it with another "
                f"limit, such as config={{{reason!r}: None}}, to go on",
                stacklevel=2,
            )
        while rounds > 0 and self.stop_reason() is None:
            part = min(rounds, MAX_ROUNDS_PER_JOB)
            self._run_job(part)
            rounds -= part
        if self.results:
            return self.results[-1]
        return round_results.round_result(self.newest, {}) | {"stop_reason": self.stop_reason()}

    def _run_job(self, rounds: int) -> None:
        before = self.newest.version
        self.require_lock()
        started = time.perf_counter()
        self._running = self._job(rounds)
        self._running.run()
        self._running = None
        self.require_lock()
        newest = self.run.directory.newest_version()
        if newest is None or newest.version == before:
            raise RunError(f"the job ended without a new version of {self.run.url}")
        self._take_in(before, newest, time.perf_counter() - started)

    def cancel(self) -> None:
        """Asks a runner elsewhere to end the running job; from another thread than `train`."""
        if (running := self._running) is not None:
            running.cancel()

    def _take_in(self, before: int, newest: VersionInfo, wall: float) -> None:
        directory = self.run.directory
        made = newest.version - before
        for version in range(before + 1, newest.version + 1):
            info = newest if version == newest.version else directory.read_version(version)
            beside = round_results.read_beside(directory, version)
            seconds = dict(beside.seconds)
            evaluated = seconds.pop("evaluated_at", None)
            spent = sum(seconds.get(part, 0.0) for part in ("collect", "learn", "evaluate"))
            seconds |= {"wall": wall / made, "overhead": max(0.0, wall / made - spent)}
            result = round_results.round_result(info, seconds, beside.env_error)
            since = None if evaluated is None else evaluated - self._started
            self.summary.add(version, result["env_steps"], result["evaluation"], since)
            self.results.append(result)
        self.rounds_made += made
        self._newest = newest
        if self.results:
            self.results[-1]["stop_reason"] = self.run.stop_reason(newest)
        self._log.update()
        if newest.version - self._pruned >= PRUNE_EVERY:
            self.prune()

    def prune(self) -> None:
        """Removes old versions: keeps the last `keep_versions`, the best, every 100th."""
        assert self._lock is not None
        best = [v for v in [self.summary.best_version] if v is not None]
        keep = self.config.keep_versions
        prune(self.run.directory, self._lock, self._log, keep_last=keep, best=best)
        self._pruned = self.newest.version

    def _job(self, rounds: int) -> Job:
        if rounds not in self._jobs:
            # A stage with hints gets workers of its own, which one machine has no use for.
            here = runner_named(self._runner).in_process
            hints = None if here else learner_hints(self.config)
            self._jobs[rounds] = Job(
                lambda pipeline: pipeline | TrainRounds(self.run, rounds, hints, not here),
                self._runner,
                self._flags,
            )
        return self._jobs[rounds]

    # --- saving -----------------------------------------------------------------------------

    def _version_to_act(self) -> VersionInfo:
        # A stored run without a version was cut short: an untrained policy must not pass for it.
        if self._created and self._newest is None and not self.run.directory.version_numbers():
            return self.start()
        return self.newest

    def save(self, path: str) -> str:
        """Writes the newest version as a run directory of its own.

        Returns:
            Its absolute path or URL, for `Algorithm.restore` or `--run_dir` with `--resume`.

        Raises:
            ConfigError: `path` holds a run already, or other files.
        """
        refuse_used_folder(RunDirectory(path))
        return stored_run.copy_version(self.run.directory, self._version_to_act(), path).url

    @classmethod
    def restore(cls, path: str, **options: Any) -> Algorithm:
        """Opens a run directory, to act with its newest policy or to train on.

        Args:
            path: What `save` returned, or the `--run_dir` of a training command.
            **options: As for the constructor; settings in `config` may change what a resume may.

        Raises:
            ConfigError: There is no run, or it names code that `allow_import` does not allow.
        """
        RunDirectory.open(path)
        return cls(options.pop("config", None), run_dir=path, resume=True, **options)

    def close(self) -> None:
        """Releases the run's lock and its environments. The object may act, or train again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
            forget_live_objects(self.run)

    def __enter__(self) -> Algorithm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
