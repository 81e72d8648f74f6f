"""Which room may use which, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "nemo_resiliency_plugins"
MAY_USE: dict[str, set[str]] = {
    "errors": set(),
    "contract": {"errors"},
    "evidence": set(),
    "config": {"errors"},
    "compat.elastic": set(),
    "compat.nvrx": {"errors"},
    "compat.nvrx_stragglers": {"errors", "compat.nvrx"},
    "compat.nvrx_guard": set(),
    "compat.gloo": {"errors"},
    "compat.inprocess": {"errors", "compat.spare_ranks"},
    "compat.rendezvous_pause": set(),
    "compat.spare_ranks": {"errors"},
    "compat.nemo_run": {"errors"},
    "slurm": {"errors", "contract"},
    "runtime": {
        "errors",
        "contract",
        "evidence",
        "config",
        "compat.elastic",
        "compat.gloo",
        "compat.inprocess",
        "compat.nvrx",
        "compat.nvrx_stragglers",
        "compat.rendezvous_pause",
        "compat.spare_ranks",
    },
    "integrations": {"errors", "contract", "config", "compat.nvrx_guard", "runtime"},
    "megatron_bridge": {"plugins"},
    "plugins": {"errors", "contract", "config", "slurm", "compat.nvrx", "compat.nemo_run"},
    "report": {"errors", "contract", "evidence"},
    "cli": {"errors", "contract", "config", "compat.nvrx", "compat.nemo_run", "plugins", "slurm", "recipes", "report"},
    "recipes": {"", "runtime"},
}
TORCH_AT_IMPORT = {
    "nemo_resiliency_plugins/runtime/checkpoint/dcp.py",
    "nemo_resiliency_plugins/runtime/checkpoint/exchange.py",
    "nemo_resiliency_plugins/runtime/checkpoint/gpu_staging.py",
    "nemo_resiliency_plugins/runtime/checkpoint/loadable.py",
    "nemo_resiliency_plugins/runtime/checkpoint/local.py",
    "nemo_resiliency_plugins/runtime/checkpoint/safe_load.py",
    "nemo_resiliency_plugins/runtime/checkpoint/staging.py",
    "nemo_resiliency_plugins/runtime/checkpoint/state.py",
    "recipes/scripts/small_gpt.py",
}
"""Files that only functions import, or that are training scripts."""
LIGHT = [PACKAGE, f"{PACKAGE}.runtime", f"{PACKAGE}.integrations.megatron_bridge"]
"""The other integrations define classes of their trainers, and load these."""
HEAVY = {"torch", "nvidia_resiliency_ext"}


def sources() -> list[Path]:
    folders = (ROOT / PACKAGE, ROOT / "recipes", ROOT / "slurm_templates")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def room(module: str) -> str:
    """``nemo_resiliency_plugins.runtime.session`` is in ``runtime``; modules of ``compat`` stand alone."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["compat"] else ".".join(parts[:1])


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == PACKAGE else (PACKAGE, *parts)).removesuffix(".__init__")


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    guarded = {id(inner) for node in ast.walk(tree) if _is_typing_guard(node) for inner in ast.walk(node)}
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _is_typing_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def used_rooms(path: Path) -> set[str]:
    names = (name for name in imports(path) if name.split(".")[0] == PACKAGE)
    return {room(name if is_module(name) or name.count(".") == 1 else name.rpartition(".")[0]) for name in names}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    here = room(module_of(path))
    if here in ("", "compat", "slurm_templates"):
        assert not list(imports(path)) or path.name == "__init__.py"
        return
    allowed = MAY_USE[here] | {here}
    used = {name if here != "recipes" or name in ("runtime", "recipes") else "" for name in used_rooms(path)}
    assert used <= allowed


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_submit_side_knows_nemo_run_and_nothing_loads_torch_unasked(path: Path) -> None:
    heads = {name.split(".")[0] for name in imports(path)}
    if room(module_of(path)) not in ("plugins", "recipes", "compat.nemo_run"):
        assert "nemo_run" not in heads
    if str(path.relative_to(ROOT)) not in TORCH_AT_IMPORT:
        assert not {name.split(".")[0] for name in imports(path, top_level_only=True)} & HEAVY


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


@pytest.mark.parametrize("path", [*sources(), *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda path: path.name)
def test_a_broad_except_stands_only_where_observation_may_not_hurt(path: Path) -> None:
    broad = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and isinstance(node.type, (ast.Name, type(None)))
        and (node.type is None or node.type.id == "Exception")
    ]
    assert not broad or path.name == "events.py"


def modules_after(statement: str) -> list[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def loaded_after(statement: str) -> set[str]:
    return {name.split(".")[0] for name in modules_after(statement)}


@pytest.mark.parametrize("module", LIGHT)
def test_the_job_side_starts_light(module: str) -> None:
    assert not loaded_after(f"import {module}") & {"torch", "nemo_run", "nvidia_resiliency_ext"}


@pytest.mark.parametrize("module", ["node", "launcher", "launch"])
def test_what_starts_before_a_script_does_not_load_its_session(module: str) -> None:
    loaded = modules_after(f"import {PACKAGE}.runtime.{module}")
    assert not {f"{PACKAGE}.runtime.{name}" for name in ("sessions", "features", "stragglers", "rerun")} & {*loaded}


def test_the_plugins_load_no_nvrx() -> None:
    loaded = loaded_after("from nemo_resiliency_plugins import FaultTolerancePlugin")
    assert "nemo_run" in loaded
    assert "nvidia_resiliency_ext" not in loaded


def test_the_plugins_import_without_torch() -> None:
    without = "import sys; sys.modules['torch'] = sys.modules['nvidia_resiliency_ext'] = None"
    for module in (PACKAGE, f"{PACKAGE}.megatron_bridge"):
        loaded_after(f"{without}; from {module} import FaultTolerancePlugin; FaultTolerancePlugin()")
