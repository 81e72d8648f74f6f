"""Scripts and modules that will be missing in the job are found at submission, and what works is not refused."""

from __future__ import annotations

from pathlib import Path

import nemo_run as run
import pytest
from nemo_run.core.packaging.hybrid import HybridPackager

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin, UnsupportedError
from nemo_resiliency_plugins.plugins import archive
from tests.plugins.projects import Project, Told, pattern, script
from tests.plugins.slurm import make

SSH = {"host": "login", "user": "me", "job_dir": "/cluster/experiment"}
COMMIT = "Commit it, or use a packager that ships the working tree, such as run.PatternPackager"


def test_a_committed_script_is_shipped(project: Project, warnings: Told) -> None:
    project.commit("train.py", "deep/er/eval.py", "tool/__main__.py", "naïve name.py")
    assert warnings(script("train.py")) == []
    assert warnings(script("./deep/../deep/er/eval.py")) == []
    assert warnings(script("/nemo_run/code/train.py")) == []
    assert warnings(script("tool")) == []
    assert warnings(script("naïve name.py")) == []


@pytest.mark.parametrize("path", ["new.py", "ignored.py", "nowhere.py", "/nemo_run/code/new.py"])
def test_a_script_that_is_not_committed_is_refused(project: Project, warnings: Told, path: str) -> None:
    project.commit("train.py")
    project.write("new.py", "ignored.py")
    (project.root / ".git" / "info" / "exclude").write_text("ignored.py\n")
    with pytest.raises(UnsupportedError, match=rf"task.path='{path}': is not among .*GitArchivePackager.*Commit"):
        warnings(script(path))


def test_what_a_ref_does_not_have_is_refused(project: Project, warnings: Told) -> None:
    project.commit("train.py")
    project.git("tag", "before")
    project.commit("later.py")
    packager = run.GitArchivePackager(ref="before")
    assert warnings(script("train.py"), packager) == [
        "FaultTolerancePlugin: uncommitted and not shipped by GitArchivePackager: later.py. " + COMMIT
    ]
    with pytest.raises(UnsupportedError, match=r"later.py"):
        warnings(script("later.py"), packager)


def test_names_in_the_job_begin_below_the_subpath(project: Project, warnings: Told) -> None:
    project.commit("part/train.py", "other.py")
    project.write("untracked.py")
    packager = run.GitArchivePackager(subpath="part")
    assert warnings(script("train.py"), packager) == [], "what lies elsewhere is no news"
    for path in ("part/train.py", "other.py"):
        with pytest.raises(UnsupportedError, match="below part"):
            warnings(script(path), packager)


def test_changes_are_named_also_from_below_the_top(
    project: Project, warnings: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("train.py", "sub/a.py", "gone.py")
    project.write("train.py", text="changed = True\n")
    project.write("sub/b b.py", "z.py")
    project.git("mv", "gone.py", "moved.py")
    monkeypatch.chdir(project.root / "sub")
    [said] = warnings(script("train.py"))
    assert "moved.py, sub/b b.py, train.py and more" in said


def test_a_repository_without_a_commit_is_no_accident(project: Project) -> None:
    project.write("train.py")
    project.git("add", "train.py")
    project.write("new.py")
    assert archive.changed_files(run.GitArchivePackager()) == ["new.py", "train.py"]


@pytest.mark.parametrize(
    "packager", [run.GitArchivePackager(), HybridPackager(sub_packagers={"a": run.GitArchivePackager()})]
)
def test_outside_of_a_repository_there_is_nothing_to_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packager: run.Packager
) -> None:
    monkeypatch.chdir(tmp_path)
    executor = make(tmp_path, packager=packager)
    with pytest.raises(
        UnsupportedError, match=r"executor\.packager='GitArchivePackager': ships .* in none.*run\.Packager"
    ):
        PreemptionPlugin().setup(run.Script(inline="true"), executor)
    assert executor.launcher is None


@pytest.mark.parametrize("fields", [{}, {"ref": "nowhere"}, {"subpath": "nowhere"}])
def test_a_commit_or_a_part_that_is_not_there_is_refused(
    project: Project, warnings: Told, fields: dict[str, str]
) -> None:
    if fields:
        project.commit("train.py")
    tree = "HEAD:nowhere" if "subpath" in fields else fields.get("ref", "HEAD")
    with pytest.raises(UnsupportedError, match=rf"GitArchivePackager.*has no {tree}\. Commit"):
        warnings(run.Script(inline="true"), run.GitArchivePackager(**fields))


def test_what_export_ignore_leaves_out_is_missing(project: Project, warnings: Told) -> None:
    project.write(".gitattributes", text="secret.py export-ignore\n")
    project.write("secret.py", "train.py")
    project.commit()
    with pytest.raises(UnsupportedError, match=r"secret.py"):
        warnings(script("secret.py"))


def test_submodules_are_shipped(project: Project, warnings: Told, tmp_path: Path) -> None:
    library = Project(tmp_path / "library")
    library.root.mkdir()
    library.git("init", "--quiet")
    library.commit("tool.py")
    project.commit("train.py")
    project.git("submodule", "--quiet", "add", str(library.root), "lib")
    project.git("commit", "--quiet", "--message=x")
    assert warnings(script("lib/tool.py")) == []
    with pytest.raises(UnsupportedError, match=r"lib/none.py"):
        warnings(script("lib/none.py"))
    with pytest.raises(UnsupportedError, match=r"lib/tool.py"):
        warnings(script("lib/tool.py"), run.GitArchivePackager(include_submodules=False))


def test_extra_patterns_of_a_git_archive_are_shipped(project: Project, warnings: Told) -> None:
    project.commit("train.py")
    project.write("data/extra.py", "more.py")
    packager = run.GitArchivePackager(include_pattern=str(project.root / "data"))
    assert warnings(script("data/extra.py"), packager) == [
        f"FaultTolerancePlugin: uncommitted and not shipped by GitArchivePackager: more.py. {COMMIT}"
    ]


def test_a_pattern_ships_what_it_matches(project: Project, warnings: Told) -> None:
    project.write("train.py", "src/eval.py", "tools/other.py")
    packager = pattern(project, "*.py", "src")
    assert warnings(script("train.py"), packager) == []
    assert warnings(script("src/eval.py"), packager) == []
    with pytest.raises(UnsupportedError, match=r"PatternPackager.*Let include_pattern match tools/other.py"):
        warnings(script("tools/other.py"), packager)


def test_a_hybrid_ships_what_its_parts_ship(project: Project, warnings: Told) -> None:
    project.commit("train.py")
    project.write("data/extra.py")
    parts = {"code": run.GitArchivePackager(), "more": pattern(project, "data")}
    packager = HybridPackager(sub_packagers=parts)
    assert warnings(script("code/train.py"), packager) == []
    assert warnings(script("more/data/extra.py"), packager) == []
    with pytest.raises(UnsupportedError, match="HybridPackager"):
        warnings(script("train.py"), packager)
    assert warnings(script("train.py"), HybridPackager(sub_packagers=parts, extract_at_root=True)) == []


def test_a_relative_script_without_packaging_is_told(project: Project, warnings: Told) -> None:
    project.commit("train.py")
    [told] = warnings(script("train.py"), run.Packager())
    assert "the script train.py is not among what Packager ships" in told
    assert told.endswith("Use a packager that ships train.py, such as run.PatternPackager, or a path that the job has.")


def test_under_strict_a_relative_script_without_packaging_is_refused(project: Project, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"what Packager ships.*or a path that the job has"):
        FaultTolerancePlugin(strict=True).plan(script("train.py"), make(tmp_path, packager=run.Packager()))


def test_what_may_be_there_is_not_refused(project: Project, warnings: Told) -> None:
    project.commit("train.py")

    class Own(run.Packager):
        pass

    assert warnings(script("train.py"), Own()) == []
    assert warnings(script("train.py"), run.Packager(symlink_from_remote_dir="/cluster/code")) == []
    assert warnings(script("/opt/image/train.py"), container_image="image") == []
    assert warnings(script("../configs/task.py")) == []
    assert warnings(run.Script("train.sh", entrypoint="bash -c 'cd /opt && exec bash $0'")) == []
    assert warnings(run.Script(inline="python anything.py")) == []
    elsewhere = ["--container-workdir=/opt/image"]
    assert warnings(script("scripts/train.py"), srun_args=elsewhere, container_image="image") == []


def test_a_script_of_this_machine_is_seen_where_the_file_system_is_shared(project: Project, warnings: Told) -> None:
    project.commit("train.py")
    here = str(project.root / "train.py")
    assert warnings(script(here)) == []
    mount = f"{project.root.parent}:{project.root.parent}"
    assert warnings(script(here), container_image="image", container_mounts=[mount]) == []
    [said] = warnings(script(here), container_image="image", container_mounts=["/data:/data:ro", "/x"])
    assert f"{here} is a file of this machine: unless the same path is in the image or a mount too" in said
    [said] = warnings(script(here), tunnel=run.SSHTunnel(**SSH))
    assert "is on the cluster too" in said


@pytest.mark.parametrize("written", ["pkg/train.py", "pkg/train/__main__.py"])
def test_a_module_that_is_not_committed_is_told(project: Project, warnings: Told, written: str) -> None:
    project.commit("other.py")
    project.write(written)
    first, second = warnings(script("pkg.train", m=True))
    assert f"the module pkg.train ({written}) is not among what GitArchivePackager ships" in first
    assert "uncommitted" in second
    project.commit(written)
    assert warnings(script("pkg.train", m=True)) == []


def test_a_module_that_only_the_image_has_is_no_news(project: Project, warnings: Told) -> None:
    project.commit("other.py")
    assert warnings(script("megatron.nowhere.train", m=True)) == []
    assert warnings(script("pytest", m=True)) == []


def test_a_copy_of_ours_in_the_jobs_code_is_told(project: Project, warnings: Told) -> None:
    project.commit("train.py", "nemo_resiliency_plugins/__init__.py")
    [said] = warnings(script("train.py"))
    assert (
        "the job's code holds a copy of nemo_resiliency_plugins, which Python finds before the one that is shipped"
        in said
    )


@pytest.mark.parametrize("directory", ["~/experiments", "experiments", "/a b/experiments"])
def test_a_directory_on_the_cluster_that_nobody_would_find_is_refused(warnings: Told, directory: str) -> None:
    with pytest.raises(UnsupportedError, match=r"tunnel.job_dir=.*Give an absolute path without spaces"):
        warnings(script("/image/train.py"), tunnel=run.SSHTunnel(**{**SSH, "job_dir": directory}))


def test_every_plugin_together_says_it_once(project: Project, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    project.commit("train.py")
    project.write("new.py")
    executor = make(tmp_path, packager=run.GitArchivePackager())
    for plugin in (PreemptionPlugin(), FaultTolerancePlugin()):
        plugin.setup(script("train.py"), executor)
    assert caplog.text.count("uncommitted and not shipped") == 1


def test_under_strict_it_is_an_error(project: Project, tmp_path: Path) -> None:
    project.commit("train.py")
    project.write("new.py")
    executor = make(tmp_path, packager=run.GitArchivePackager())
    with pytest.raises(UnsupportedError, match=r"task='new': the module new .* is not among"):
        FaultTolerancePlugin(strict=True).setup(script("new", m=True), executor)
    assert executor.launcher is None
    FaultTolerancePlugin(strict=True).setup(script("train.py"), executor)


def test_on_one_machine_nothing_is_shipped_or_refused(project: Project) -> None:
    executor = run.LocalExecutor(ntasks_per_node=1)
    FaultTolerancePlugin().setup(script("nowhere.py"), executor)
