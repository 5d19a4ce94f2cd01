"""Every command and every piece of Python in the README and the docs does what it is shown for."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from pipelines.algorithm import Algorithm
from pipelines.training_command import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
TRAIN = "python -m pipelines.train"
# What other programs do is not ours to test; make's targets are, in `test_makefile_targets`.
OTHERS = ("pip install ", "tensorboard ", "git ", "cd ", ". ")


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for name, text in BLOCK.findall(page.read_text()):
            if name == language:
                found.append((page.name, text))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with the modules that the docs show: blocks that begin with a name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    return tmp_path


def shell_lines() -> list[tuple[str, str]]:
    """Commands in blocks without a language or with a shell's, continued lines joined."""
    return [
        (page, line.strip())
        for language in ("", "sh", "bash", "shell", "console")
        for page, text in blocks(language)
        for line in text.replace("\\\n", " ").splitlines()
        if re.match(r"\s*(\$ )?(python|make|pip|tensorboard|git) ", line)
    ]


def inline_commands() -> list[tuple[str, str]]:
    """Training commands in running text."""
    pattern = re.compile(rf"`({re.escape(TRAIN)}[^`]*)`")
    return [
        (page.name, match)
        for page in PAGES
        for match in pattern.findall(BLOCK.sub("", page.read_text()))
    ]


TRAINING = [
    (page, line)
    for page, line in dict.fromkeys([*shell_lines(), *inline_commands()])
    if line.removeprefix("$ ").startswith(TRAIN)
]


MODULES = {
    match[1]: text for _, text in blocks("python") if (match := re.match(r"# (\w+\.py)\n", text))
}


def test_the_docs_show_commands() -> None:
    assert TRAINING and any(page == "README.md" for page, _ in TRAINING)


@pytest.mark.parametrize(("page", "line"), TRAINING)
def test_training_commands_are_understood(
    page: str,
    line: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = shlex.split(line.removeprefix("$ "), comments=True)[3:]
    resumed = "--resume" in words
    if resumed:
        (run_dir,) = [word.partition("=")[2] for word in words if word.startswith("--run_dir=")]
        small = ["--num_envs_per_worker=2", "--rollout_fragment_length=4", "--quiet"]
        # The docs' run is made by the command above it, with another environment.
        env = ["--env=Acrobot-v1"] if "acrobot" in run_dir else []
        if "--allow_import=myenv" in words:
            env = ["--env=myenv:MyEnv"]
        small += ["--evaluation_interval=0", "--max_rounds=1", *env]
        assert main([f"--run_dir={run_dir}", *small]) == 0
    shows = {"--print_config", "--help", "-h"} & set(words)
    assert main(words if shows else [*words, "--print_config"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out


def test_other_commands_are_known_ones() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for page, line in shell_lines():
        line = line.removeprefix("$ ")
        if line.startswith("make "):
            assert line.split()[1] in targets, f"{page}: {line}"
        elif line.startswith("python -m "):
            module = line.split()[2]
            assert (ROOT / f"{module.replace('.', '/')}.py").exists() or module in (
                "venv",
                "pip",
                "pytest",
            ), f"{page}: {line}"
        else:
            assert line.startswith(OTHERS), f"{page}: {line}"


@pytest.mark.parametrize(
    ("page", "code"),
    [(page, code) for page, code in blocks("python") if "Algorithm" in code],
)
def test_python_that_trains_runs(page: str, code: str, folder: Path) -> None:
    scope: dict[str, object] = {}
    exec(compile(code, page, "exec"), scope)
    for value in scope.values():
        close = getattr(value, "close", None)
        if callable(close) and not isinstance(value, type):
            close()


@pytest.mark.parametrize(
    "settings",
    [
        ["--env=myenv:MyEnv", '--env_config={"length": 15}', "--set", "horizon=200"],
        [
            "--set",
            "model.custom_network=mynet:Net",
            "--set",
            "model.custom_network_config.width=16",
        ],
    ],
)
def test_modules_of_the_docs_train_and_are_restored(settings: list[str], folder: Path) -> None:
    small = ["--max_rounds=1", "--evaluation_interval=0", "--quiet", "--run_dir=run"]
    assert main([*settings, *small]) == 0
    with (
        Algorithm.restore("run", allow_import=["myenv", "mynet"]) as algorithm,
        pytest.warns(UserWarning, match="max_rounds"),
    ):
        assert algorithm.train()["stop_reason"] == "max_rounds"
    with Algorithm.restore(
        "run", config={"max_rounds": 2}, allow_import=["myenv", "mynet"]
    ) as algorithm:
        assert algorithm.train()["version"] == 2


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
