"""The rules of the house that a program can check: import direction, who may import what, lint, types, no backend on import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "denseir_jax"
# From top to bottom: a room may import itself and the rooms below it.
ROOMS = ("pipeline", "train", "objectives", "search", "analyses", "models", "parallel", "data", "evals", "core")
# A library that only one place may import.
OWNERS = {"flax": "models/", "orbax": "train/checkpoint.py", "optax": "train/", "scann": "search/scann_index.py", "bm25s": "search/bm25.py"}
WITHOUT_JAX = ("data", "evals", "core")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Full dotted names of everything that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_folder_is_a_known_room():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(ROOMS)


def test_arrows_point_downward():
    upward = []
    for path in modules():
        parts = path.relative_to(PACKAGE).parts
        if len(parts) == 1:
            continue
        allowed = set(ROOMS[ROOMS.index(parts[0]) :])
        for name in imported(path):
            if name.startswith("denseir_jax."):
                room = name.split(".")[1]
                if room in ROOMS and room not in allowed:
                    upward.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not upward


def test_libraries_stay_with_their_owners():
    strays = []
    for path in modules():
        place = str(path.relative_to(PACKAGE))
        roots = {name.split(".")[0] for name in imported(path)}
        strays += [f"{place} imports {library}" for library, owner in OWNERS.items() if library in roots and not place.startswith(owner)]
        if place.split("/")[0] in WITHOUT_JAX and roots & {"jax", "jaxlib", "flax"}:
            strays.append(f"{place} imports JAX")
    assert not strays


def test_training_is_compiled_in_one_place():
    found = [
        str(p.relative_to(PACKAGE))
        for p in (PACKAGE / "train").glob("*.py")
        if "jax.jit" in p.read_text() and p.name not in ("step.py", "probes.py")
    ]
    assert not found


def test_pickles_are_read_nowhere():
    found = [
        str(p)
        for p in modules()
        if {"pickle", "dill", "joblib"} & {n.split(".")[0] for n in imported(p)} and p.name != "pickled_vectors.py"
    ]
    assert not found


def test_launch_files_are_thin():
    long = [p.name for p in (ROOT / "launch").glob("*.py") if len(p.read_text().splitlines()) > 60]
    assert not long


def test_files_and_functions_stay_short():
    long = []
    for path in modules():
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > 300:
            long.append(f"{path.name}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (node.end_lineno or 0) - node.lineno > 55:
                long.append(f"{path.name}:{node.lineno} {node.name}")
    assert not long


def test_importing_everything_starts_no_backend():
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in modules()]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a JAX backend was started'\n"
        "assert 'torch' not in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)], ids=" ".join)
def test_lint_and_types(command):
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
