"""``doctor``: each finding has its remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nemo_resiliency_plugins.cli.doctor import versions
from nemo_resiliency_plugins.cli.main import app
from nemo_resiliency_plugins.slurm import site

CONFIG = {"SLURM_VERSION": "22.05.8", "KillWait": "30 sec", "JobRequeue": "1", "PreemptType": "preempt/partition_prio"}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    """Make a package of that version known to Python, before all others."""
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(directory), *sys.path])


def without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.slow
def test_the_launcher_of_this_machine_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_slurm(monkeypatch, tmp_path)
    done = invoke()
    assert done.exit_code == 0, done.output


def test_this_machine_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_slurm(monkeypatch, tmp_path)
    done = invoke("--json", "--no-start")
    found = {each["name"]: each for each in json.loads(done.output)}
    assert done.exit_code == 0, done.output
    assert {"torch", "nemo_run", "nvidia-resiliency-ext", "NCCL", "ft_launcher", "mcp", "Slurm"} <= set(found)
    assert found["ft_launcher"]["value"].endswith("/ft_launcher")


@pytest.mark.parametrize(
    ("name", "version", "remedy"),
    [
        ("mcp", "2.0.1", "pip install 'mcp<2'"),
        ("nemo_run", "0.12.0", "pip install 'nemo_run>=0.11.1,<0.12'"),
        ("torch", "2.4.0+cu121", "pip install 'torch>=2.5.1'"),
        ("nvidia-resiliency-ext", "0.9.0", "runtime"),
        ("typer", "0.15.1", "pip install 'typer>=0.19'"),
        ("leptonai", "0.47.0", "pip install 'leptonai>=0.26.6,<0.28'"),
    ],
)
def test_a_version_that_breaks_a_fresh_install_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, version: str, remedy: str
) -> None:
    install(tmp_path, monkeypatch, name, version)
    [finding] = [each for each in versions() if each.name == name]
    assert (finding.value, bool(finding.problem)) == (version, True)
    assert remedy in finding.remedy


@pytest.mark.parametrize("version", ["1.28.1", "1.15"])
def test_a_version_that_works_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    install(tmp_path, monkeypatch, "mcp", version)
    assert [each.problem for each in versions() if each.name == "mcp"] == [""]


def test_a_vendors_build_before_a_release_counts_as_that_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path, monkeypatch, "torch", "2.6.0a0+ecf3bae40a.nv25.01")
    assert [each.problem for each in versions() if each.name == "torch"] == [""]


def test_a_launcher_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "ft_launcher"
    broken.write_text("#!/bin/sh\necho 'ImportError: mcp has no server' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    without_slurm(monkeypatch, tmp_path)
    done = invoke()
    assert done.exit_code == 1
    assert "does not start: ImportError: mcp has no server" in done.output


def test_slurm_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2\nexit 1\n")
    scontrol.chmod(0o755)
    without_slurm(monkeypatch, tmp_path)
    done = invoke("--no-start")
    assert (done.exit_code, "Unable to contact slurm controller" in done.output) == (1, True)


def problems(**fields: str) -> dict[str, str]:
    found = site.of_partition({"PartitionName": "gpu", "State": "UP", "MaxTime": "1-00:00:00", **fields}, CONFIG)
    return {name: remedy for name, _, problem, remedy in found if problem}


def test_a_partition_that_is_as_it_should_be() -> None:
    assert problems(PreemptMode="REQUEUE", GraceTime="300") == {}
    assert problems(PreemptMode="OFF", GraceTime="0") == {}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"PreemptMode": "REQUEUE", "GraceTime": "10"}, "gpu: GraceTime"),
        ({"PreemptMode": "CANCEL", "GraceTime": "0"}, "gpu: GraceTime"),
        ({"PreemptMode": "SUSPEND,GANG"}, "gpu: PreemptMode SUSPEND"),
        ({"MaxTime": "5:00"}, "gpu: MaxTime"),
        ({"State": "DRAIN"}, "gpu: State"),
    ],
)
def test_a_setting_that_costs_work_has_a_remedy(fields: dict[str, str], name: str) -> None:
    found = problems(**fields)
    assert list(found) == [name]
    assert found[name]


def test_short_grace_is_no_problem_where_nothing_is_preempted() -> None:
    quiet = {**CONFIG, "PreemptType": "preempt/none"}
    found = site.of_partition({"PartitionName": "gpu", "PreemptMode": "REQUEUE", "GraceTime": "0"}, quiet)
    assert not [name for name, _, problem, _ in found if problem]


def test_what_scontrol_prints_is_read() -> None:
    told = site.fields_of_config("KillWait                = 30 sec\nAuthInfo = socket=/run/m,cred_expire=5\n")
    findings = {name: value for name, value, _, _ in site.of_config(told)}
    assert (findings["KillWait"], findings["cred_expire"]) == ("30 sec", "5 s")
    [one] = site.partitions("PartitionName=low GraceTime=10 PreemptMode=REQUEUE Nodes=n[1-3]\n")
    assert (one["PartitionName"], one["GraceTime"]) == ("low", "10")
