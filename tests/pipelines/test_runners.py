"""Jobs: run again and again, and fail with the message of what failed."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest

from pipelines.runners import RUNNERS, Job, runner_named, runs_in_memory
from pipelines.stage_errors import StageError, failure
from policies.errors import ConfigError, RunError

MODES = {
    "in_memory": ["--direct_running_mode=in_memory"],
    "multi_threading": ["--direct_running_mode=multi_threading", "--direct_num_workers=2"],
    "multi_processing": ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
}
MESSAGE = "environment 'a[b]' failed: one [while running x]\ntwo (three)\n\nfour"
MESSAGE_LINE = "environment 'a[b]' failed: one [while running x] two (three) four"

# Worker processes import the functions of their stages, so these are in a module of its own.
STAGES = f"""
import os
from policies.errors import ConfigError, RunError

def fail(x):
    raise RunError({MESSAGE!r})

def refuse(x):
    try:
        {{}}["missing"]
    except KeyError as error:
        raise ConfigError("the setting is wrong") from error

def break_down(x):
    raise KeyError("some key")

def die(x):
    os._exit(3)
"""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[int], object]]:
    folder = tmp_path_factory.mktemp("stages")
    (folder / "stages_to_fail.py").write_text(STAGES)
    sys.path.append(str(folder))
    try:
        import stages_to_fail  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(folder))
    return vars(stages_to_fail)


def run(stage: Callable[[int], object], mode: str) -> None:
    Job(
        lambda pipeline: pipeline | beam.Create([1]) | "Work" >> beam.Map(stage),
        "DirectRunner",
        MODES[mode],
    ).run()


def test_a_job_runs_again_and_does_its_work_each_time(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def note(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    job = Job(lambda p: p | beam.Create(["x"]) | beam.Map(note), "DirectRunner", [])
    for _ in range(3):
        job.run()
    assert log.read_text() == "xxx"


def require_clear_errors(stages: dict[str, Callable[[int], object]], mode: str) -> None:
    with pytest.raises(RunError) as failed:
        run(stages["fail"], mode)
    assert str(failed.value) == MESSAGE_LINE and type(failed.value) is RunError
    with pytest.raises(ConfigError) as refused:
        run(stages["refuse"], mode)
    assert str(refused.value) == "the setting is wrong"
    with pytest.raises(StageError) as broken:
        run(stages["break_down"], mode)
    assert "KeyError" in str(broken.value) and "some key" in str(broken.value)
    assert str(broken.value).endswith("(in Work)") and "Traceback" not in str(broken.value)
    assert "break_down" in "".join(traceback.format_exception(broken.value))


def test_errors_of_ours_keep_their_class_and_message_and_nothing_is_printed(
    stages: dict[str, Callable[[int], object]], capfd: pytest.CaptureFixture[str]
) -> None:
    require_clear_errors(stages, "in_memory")
    assert capfd.readouterr().err == ""


def test_threads_fail_with_the_same_message_and_say_nothing(
    stages: dict[str, Callable[[int], object]],
) -> None:
    # In a process of its own: threads of a failed job have things to say for seconds after it.
    here, folder = Path(__file__), Path(stages["__file__"]).parent  # type: ignore[arg-type]
    code = (
        "import logging, sys\n"
        "logging.getLogger().addHandler(logging.NullHandler())\n"
        f"sys.path[:0] = [{str(here.parents[2])!r}, {str(here.parent)!r}, {str(folder)!r}]\n"
        "import stages_to_fail, test_runners\n"
        "test_runners.require_clear_errors(vars(stages_to_fail), 'multi_threading')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_worker_processes_fail_with_the_same_message_and_say_nothing(
    stages: dict[str, Callable[[int], object]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(Path(stages["__file__"]).parent))  # type: ignore[arg-type]
    with pytest.raises(RunError) as failed:
        run(stages["fail"], "multi_processing")
    assert str(failed.value) == MESSAGE_LINE and type(failed.value) is RunError
    assert capfd.readouterr().err == ""


def test_a_worker_process_that_dies_fails_the_job_at_once(
    stages: dict[str, Callable[[int], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(stages["__file__"]).parent))  # type: ignore[arg-type]
    started = time.monotonic()
    with pytest.raises(RunError, match="worker process of the runner died .*return code 3"):
        run(stages["die"], "multi_processing")
    assert time.monotonic() - started < 60


def test_the_level_of_beams_log_is_as_before_after_a_job() -> None:
    logger = logging.getLogger("apache_beam.runners")
    before = logger.level
    with pytest.raises(StageError):
        run(lambda x: 1 / 0, "in_memory")
    assert logger.level == before


def test_the_innermost_error_is_found_in_a_text_with_tracebacks_around_it() -> None:
    text = (
        "java.lang.RuntimeException: Error received from SDK harness: Traceback (most recent "
        "call last):\n  File 'x.py', line 1, in process\n"
        "policies.errors.RunError: first line\nsecond\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File 'y.py', line 2, in do\n"
        "policies.errors.RunError: first line\nsecond [while running 'Round1/Learn']\n\n"
        "\tat org.apache.beam.Something(Something.java:1)\n"
    )
    found = failure(RuntimeError(text))
    assert type(found) is RunError and str(found) == "first line second"


def test_an_error_without_a_text_is_named_by_its_class() -> None:
    assert str(failure(MemoryError())) == "the job failed: MemoryError"


def test_runners_are_found_by_name_and_the_nearest_is_offered() -> None:
    for name in RUNNERS:
        assert runner_named(name.lower()).name == name
    with pytest.raises(ConfigError, match="did you mean PrismRunner"):
        runner_named("Prism")
    with pytest.raises(ConfigError, match="known: DirectRunner, "):
        runner_named("xyz")


def test_only_the_in_process_runner_without_processes_runs_here() -> None:
    assert runs_in_memory(runner_named("DirectRunner"), [])
    assert runs_in_memory(runner_named("DirectRunner"), MODES["multi_threading"])
    assert not runs_in_memory(runner_named("DirectRunner"), MODES["multi_processing"])
    assert not runs_in_memory(runner_named("FlinkRunner"), [])
