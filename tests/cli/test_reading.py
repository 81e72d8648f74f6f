"""``status`` and ``report``, as a person and as a program reads them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nemo_resiliency_plugins.cli.main import app
from nemo_resiliency_plugins.contract import Attempt
from tests.harness import BIN, wait_for
from tests.synthetic import EPOCH, Job

FIRST, AGAIN = Attempt("7"), Attempt("7", cycle=1)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def failing(directory: Path) -> Job:
    job = Job(directory / "nrp")
    job.start(0, FIRST, saves=(5, 10))
    with job.rank(1, FIRST) as rank:
        rank.raised(18, "SystemExit", "42", code=42)
    with job.rank(0, FIRST) as rank:
        rank.lost_a_peer(18.1)
    return job


@pytest.fixture
def failed(tmp_path: Path) -> Job:
    return failing(tmp_path)


@pytest.fixture
def recovered(failed: Job) -> Job:
    failed.start(20, AGAIN, resumed=10, saves=(20,), left="finished")
    return failed


def test_status_of_a_job_that_has_recovered(recovered: Job) -> None:
    done = invoke("status", recovered.directory.parent)
    assert done.exit_code == 0
    assert "finished: step 20, checkpoint 20, 1 failure\n" in done.output
    assert re.search(
        r"^failure: rank 1 on n1: exited with code 42; started again in the job, .* cost \d", done.output, re.M
    )


@pytest.mark.parametrize("verb", ["status", "report"])
def test_a_job_that_has_failed_is_1(failed: Job, verb: str) -> None:
    done = invoke(verb, failed.directory)
    assert done.exit_code == 1
    assert "failed" in done.output
    assert "rank 1 on n1: exited with code 42" in done.output


def test_a_requeued_job_is_well_and_one_that_was_stopped_is_not(failed: Job) -> None:
    for action, code, state in (("requeue", 0, "waits for its next start: failed"), ("stop", 1, "ended: failed")):
        policy = {"state": "ended", "action": action, "why": "failed", "failures": 1}
        (failed.directory / "policy.json").write_text(json.dumps(policy))
        done = invoke("status", failed.directory)
        assert (done.exit_code, state in done.output) == (code, True)
        assert "policy: failures 1, why failed" in done.output


def test_the_report_names_the_first_failure_and_says_what_is_secondary(recovered: Job) -> None:
    done = invoke("report", recovered.directory)
    lines = done.output.splitlines()
    assert done.exit_code == 0
    [first] = [number for number, line in enumerate(lines) if line.startswith("first failure: rank 1 on n1: exited")]
    assert lines[first + 1].startswith("  secondary: rank 0 on n0: RuntimeError: Read error [10.0.0.1]:99")
    assert any(line.startswith("goodput ") for line in lines)
    assert any(re.match(r"steps done again +\d", line) for line in lines)


def test_json_is_for_programs(recovered: Job) -> None:
    status = json.loads(invoke("status", recovered.directory, "--json").output)
    assert (status["state"], status["step"], status["failures"][0]["first"]["rank"]) == ("finished", 20, 1)
    report = json.loads(invoke("report", recovered.directory, "--json").output)
    assert report["goodput"] == pytest.approx(report["seconds"]["steps that counted"] / report["wall_s"])
    assert [lane["rank"] for lane in report["timeline"]] == [0, 1]


def test_the_report_is_written_as_a_page_and_a_picture(recovered: Job, tmp_path: Path) -> None:
    done = invoke("report", recovered.directory, "--html", tmp_path / "r.html", "--png", tmp_path / "r.png")
    assert done.exit_code == 0
    written = [line for line in done.output.splitlines() if line.startswith("written: ")]
    assert written == [f"written: {tmp_path / name}" for name in ("r.html", "r.png")]
    assert "<svg" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "r.png").stat().st_size > 1000


def test_a_page_beside_json_leaves_json_alone(recovered: Job, tmp_path: Path) -> None:
    done = invoke("report", recovered.directory, "--json", "--html", tmp_path / "r.html")
    assert json.loads(done.stdout)["state"] == "finished"
    assert "written: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--html", "no/r.html"], "cannot be written: No such file or directory. Name a file in a directory"),
        (["--html", "."], "cannot be written: Is a directory. Name"),
        (["--png", "no/r.png"], "cannot be written: No such file or directory. Name"),
        (["--png", "r.txt"], r"is to be the name of a PNG file\. Give a name that ends with \.png"),
        (["--png", "r"], r"is to be the name of a PNG file\. Give a name that ends with \.png"),
    ],
)
def test_a_page_or_picture_that_cannot_be_written_is_2(
    recovered: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = invoke("report", recovered.directory, *arguments)
    option, value = arguments
    assert done.exit_code == 2, done.output
    assert re.fullmatch(f"nemo-resiliency: {option}='{re.escape(value)}': {said}.*\n", done.output), done.output
    assert not [*(tmp_path / "here").iterdir()]


def looking_for_stragglers(directory: Path, *, looks: bool) -> Job:
    job = Job(directory / "nrp")
    with job.rank(1, FIRST) as rank:
        rank.started(0, None)
        rank.tell(9, "fault_injected", kind="slow", step=4, seconds=0.5, steps=20)
    with job.rank(0, FIRST) as rank:
        rank.started(0, None)
        rank.tell(2.5, "session_started", pid=1, node="n0", world_size=2, stragglers=looks)
        for at, step, score in ((10, 5, 0.3), (20, 10, 0.2)) if looks else ():
            rank.tell(at, "straggler_report", step=step, seconds=0.1, scores={}, absent={}, stragglers=[1])
            scores = {"host_relative": score}
            rank.tell(at, "straggler", step=step, slow_rank=1, node="n1", scores=scores, phase="data")
        rank.tell(30, "finished", step=20)
    return job


@pytest.mark.parametrize("verb", ["status", "report"])
def test_a_slow_rank_is_told_with_its_node_and_score(tmp_path: Path, verb: str) -> None:
    said = invoke(verb, looking_for_stragglers(tmp_path, looks=True).directory).output.splitlines()
    told = "news: rank 1 on n1: slow in 2 straggler reports, steps 5 to 10, slowest in data; score host relative 0.20"
    assert [line.startswith(told) for line in said].count(True) == 1


@pytest.mark.parametrize("verb", ["status", "report"])
def test_it_is_said_that_nobody_looks_for_slow_ranks(tmp_path: Path, verb: str) -> None:
    said = invoke(verb, looking_for_stragglers(tmp_path, looks=False).directory).output.splitlines()
    slow = "news: rank 1: injected: slow at step 4, 0.5 s in each of 20 steps"
    assert f"{slow}; straggler detection is off: slow ranks are not looked for" in said


def test_a_pipe_gets_whole_lines_without_colour_and_boxes(recovered: Job) -> None:
    command = [BIN / "nemo-resiliency", "report", recovered.directory]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "FORCE_COLOR": ""}
    ).stdout
    assert said.isascii()
    assert "\x1b" not in said
    assert re.search(r"^first failure: .*; cost \d+\.\d s", said, re.M)


def test_a_directory_with_several_jobs_names_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        failing(tmp_path / name)
    done = invoke("status", tmp_path)
    assert done.exit_code == 2
    assert "holds 2 jobs" in done.output
    assert str(tmp_path / "b" / "nrp") in done.output


@pytest.mark.parametrize("name", ["none", "file", "n" * 300])
def test_a_directory_that_cannot_be_read_is_2(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    done = invoke("status", tmp_path / name)
    assert done.exit_code == 2
    assert "cannot be read" in done.output


def test_a_copy_without_a_place_is_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "rsync").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    done = invoke("status", "--host", "login", "/shared/job")
    assert done.exit_code == 2
    assert "XDG_CACHE_HOME" in done.output


def test_tasks_of_one_name_are_told_apart(tmp_path: Path) -> None:
    failing(tmp_path / "train")
    failing(tmp_path / "train" / "train_1")
    done = invoke("status", tmp_path)
    assert done.exit_code == 2
    assert "holds 2 jobs" in done.output
    assert str(tmp_path / "train" / "train_1" / "nrp") in done.output


def test_a_job_is_found_below_its_experiment(recovered: Job) -> None:
    deep = recovered.directory.parent / "experiments" / "train" / "train_1" / "train"
    deep.mkdir(parents=True)
    recovered.directory.rename(deep / "nrp")
    assert invoke("status", deep.parents[2]).exit_code == 0


@pytest.mark.parametrize("verb", ["status", "report"])
def test_the_news_of_a_slow_rank_and_the_head_agree_on_reports(tmp_path: Path, verb: str) -> None:
    """The rank was slowed down in a start whose end came before the next look for slow ranks."""
    job = looking_for_stragglers(tmp_path, looks=True)
    with job.rank(0, AGAIN) as rank:
        rank.started(40, None)
        rank.tell(43, "straggler_report", step=5, seconds=0.1, scores={}, absent={}, stragglers=[])
        rank.tell(50, "finished", step=20)
    said = invoke(verb, job.directory).output
    assert "20 steps; 3 straggler reports, slow: rank 1 on n1\n" in said
    assert verb == "status" or "\n3 straggler reports, slow: rank 1 on n1\n" in said


@contextlib.contextmanager
def piped(job: Job) -> Iterator[list[str]]:
    """The lines of ``status --watch`` so far; it has ended well when the block is left."""
    command = [BIN / "nemo-resiliency", "status", job.directory, "--watch", "--every", "0.2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(iter(process.stdout.readline, "")))  # type: ignore[union-attr]
    reader.start()
    try:
        yield said
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()  # type: ignore[union-attr]


def test_watch_in_a_pipe_tells_each_change_once_until_the_end(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    now = time.time() - EPOCH
    job.start(now - 20, FIRST, saves=(5,))
    with piped(job) as said:
        wait_for(lambda: said, what="the first line")
        job.injected(now - 1, 1, "stop", FIRST)
        wait_for(lambda: "news: rank 1 on n1: injected: stop\n" in said, what="the news")
        with job.rank(1, FIRST) as rank:
            rank.raised(now, "ValueError", "no")
        wait_for(lambda: any(line.startswith("failure: ") for line in said), what="the failure")
        seen = time.time()
        wait_for(lambda: time.time() > seen + 1, what="some more looks, at which the cost grows")
        job.start(now + 1, AGAIN, resumed=5, saves=(10,), left="finished")
    assert said[0] == "running: step 5, checkpoint 5, 0 failures\n"
    assert said[-1] == "finished: step 10, checkpoint 10, 1 failure\n"
    assert len(set(said)) == len(said)
    first, settled = (line for line in said if line.startswith("failure: rank 1 on n1: "))
    assert re.search(r"not started again so far; cost \d+\.\d s so far$", first)
    assert re.search(r"started again in the job, resumed from step 5; cost \d+\.\d s$", settled)


def test_watch_in_a_pipe_tells_a_failure_again_when_its_cause_is_another(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    now = time.time() - EPOCH
    job.start(now - 20, FIRST, saves=(5,))
    with piped(job) as said:
        with job.rank(0, FIRST) as rank:
            rank.raised(now, "ValueError", "no")
        wait_for(lambda: any("failure: rank 0 on n0: ValueError" in line for line in said), what="what came later")
        with job.rank(1, FIRST) as rank:
            rank.raised(now - 1, "ValueError", "no")
        wait_for(lambda: any("failure: rank 1 on n1: ValueError" in line for line in said), what="the cause")
        job.start(now + 1, AGAIN, resumed=5, saves=(10,), left="finished")
    assert len([line for line in said if line.startswith("failure: ")]) == 3
