"""The three floors: pipelines may import transforms and policies, transforms policies, never up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = {
    "policies": {"apache_beam", "transforms", "pipelines", "tests", "benchmarks"},
    "transforms": {"pipelines", "tests", "benchmarks"},
    "pipelines": {"tests", "benchmarks"},
}
FILES = sorted(path for package in FORBIDDEN for path in (ROOT / package).rglob("*.py"))
PIPELINE_FILES = [path for path in FILES if path.relative_to(ROOT).parts[0] == "pipelines"]
INITS = [path for path in FILES if path.name == "__init__.py"]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also those inside functions and by `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            first = node.args[0]
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_downward_and_are_absolute(path: Path) -> None:
    forbidden = FORBIDDEN[path.relative_to(ROOT).parts[0]]
    for line, module in imported(ast.parse(path.read_text())):
        assert not module.startswith("."), f"{name_of(path)}:{line} has a relative import"
        top = module.split(".")[0]
        assert top not in forbidden, f"{name_of(path)}:{line} imports {module}"


@pytest.mark.parametrize("path", INITS, ids=name_of)
def test_package_init_holds_a_docstring_and_nothing_else(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    assert len(body) == 1, f"{name_of(path)} holds more than a docstring"
    assert isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def test_every_folder_of_the_packages_is_a_package() -> None:
    folders = {path.parent for path in FILES}
    assert folders == {path.parent for path in INITS}


@pytest.mark.parametrize("path", PIPELINE_FILES, ids=name_of)
def test_pipelines_hold_nothing_that_is_pickled(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
            assert not bases & {"DoFn", "CombineFn"}, f"{name_of(path)}:{node.lineno}"


def test_the_check_sees_every_way_to_import() -> None:
    source = (
        "import a.b, c\nfrom d.e import f\nfrom . import g\n"
        "def h():\n    import i\n    importlib.import_module('j')\n    __import__('k')\n"
    )
    found = [module for _, module in imported(ast.parse(source))]
    assert sorted(found) == sorted(["a.b", "c", "d.e", ".", "i", "j", "k"])
