"""What a remote worker gets: the package that Beam's stager builds for --setup_file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.stager import Stager

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipelines", "transforms", "policies")
SHIPPED = ["pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "constraints.txt", "README.md"]

# Imports every module of the installed packages; prints the files that they came from.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
from importlib import resources
origins = {}
for package in sys.argv[1:]:
    found = importlib.import_module(package)
    origins[package] = found.__file__
    for module in pkgutil.walk_packages(found.__path__, package + "."):
        if not module.name.endswith("__main__"):
            origins[module.name] = importlib.import_module(module.name).__file__
from policies.config_renames import renamed_keys
assert renamed_keys()["num_workers"].new == "num_rollout_workers"
print(json.dumps(origins))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the repository ships, so that the build leaves nothing in the work tree."""
    copy = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=ignore)
    for name in SHIPPED:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as Beam stages it for a job with --setup_file=./setup.py."""
    staging = tmp_path_factory.mktemp("staging")
    options = PipelineOptions(["--setup_file", str(source / "setup.py")])
    Stager.create_job_resources(
        options,
        str(staging),
        log_submission_env_dependencies=False,
    )
    built = sorted(staging.rglob("*.tar.gz"))
    assert built, f"the stager left only {sorted(staging.rglob('*'))}"
    return built[0]


@pytest.fixture(scope="module")
def installed(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(target), str(sdist)]
    subprocess.run(command, check=True, cwd=target)
    return target


def test_sdist_holds_the_packages_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.split("/")[0] for name in names}
    assert {*PACKAGES, "setup.py", "pyproject.toml", "LICENSE"} <= tops
    assert not tops & {"tests", "docs", "benchmarks", "runs", ".venv"}
    assert "policies/renamed_keys.json" in names


def test_every_file_of_the_packages_is_installed(source: Path, installed: Path) -> None:
    for package in PACKAGES:
        expected = {p.relative_to(source) for p in (source / package).rglob("*") if p.is_file()}
        present = {p.relative_to(installed) for p in (installed / package).rglob("*.*")}
        assert expected <= present


def test_every_module_imports_from_the_installed_package(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *PACKAGES],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    origins = json.loads(result.stdout.splitlines()[-1])
    expected = {
        ".".join(path.relative_to(installed).with_suffix("").parts).removesuffix(".__init__")
        for package in PACKAGES
        for path in (installed / package).rglob("*.py")
        if path.name != "__main__.py"
    }
    assert set(origins) == expected
    assert all(Path(origin).is_relative_to(installed) for origin in origins.values())
