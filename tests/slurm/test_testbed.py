"""The cluster behaves as the sites' clusters do, in what the tests of this project rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.harness import wait_for
from tests.slurm.testbed import Cluster, SlurmError, TestbedError, pyxis
from tests.slurm.testbed.client import parse_fields
from tests.slurm.testbed.layout import NODES
from tests.slurm.testbed.processes import matching

REPOSITORY = Path(__file__).resolve().parents[2]
FOREVER = "exec sleep 600"


def in_container(command: str, *options: str, image: str = "base") -> str:
    """A batch script whose step runs ``command`` with bash in a container."""
    flags = " ".join(f"'{option}'" for option in options)
    return f"srun --container-image={image} {flags} bash -c '{command}'"


def output_of(cluster: Cluster, script: str, *options: str) -> str:
    """The output of a job that must succeed."""
    job_id = cluster.sbatch(script, *options)
    assert cluster.wait_for_end(job_id)[-1]["State"] == "COMPLETED", cluster.describe(job_id)
    return cluster.output(job_id)


def said(cluster: Cluster, job_id: str, text: str, deadline_s: float = 30.0) -> None:
    wait_for(lambda: text in cluster.output(job_id), deadline_s=deadline_s, what=f"{text!r} in the output")


def test_a_job_over_two_nodes_completes(cluster: Cluster) -> None:
    job_id = cluster.sbatch("srun --label printenv SLURMD_NODENAME", "--nodes=2", "--ntasks-per-node=1")
    (row,) = cluster.wait_for_end(job_id)
    assert (row["State"], row["ExitCode"]) == ("COMPLETED", "0:0")
    assert cluster.job(job_id)["NodeList"] == "n[1-2]"
    assert sorted(cluster.output(job_id).splitlines()) == ["0: n1", "1: n2"]
    assert [each["JobID"] for each in cluster.sacct(job_id, steps=True)] == [job_id, f"{job_id}.batch", f"{job_id}.0"]


def test_a_failing_job_keeps_its_code(cluster: Cluster) -> None:
    (row,) = cluster.wait_for_end(cluster.sbatch("exit 17"))
    assert (row["State"], row["ExitCode"]) == ("FAILED", "17:0")


def test_a_failing_command_of_slurm_says_why(cluster: Cluster) -> None:
    with pytest.raises(SlurmError, match="invalid partition"):
        cluster.sbatch("true", "--partition=none")


def test_tasks_of_an_array_are_jobs_of_their_own(cluster: Cluster) -> None:
    job_id = cluster.sbatch("exit $SLURM_ARRAY_TASK_ID", "--array=0-1")
    ends = [cluster.wait_for_end(f"{job_id}_{task}")[-1] for task in range(2)]
    assert [(row["State"], row["ExitCode"]) for row in ends] == [("COMPLETED", "0:0"), ("FAILED", "1:0")]


@pytest.mark.slow
def test_a_higher_partition_preempts_and_the_job_is_requeued(cluster: Cluster) -> None:
    script = f"srun bash -c 'trap \"echo notice; exit\" TERM; echo started; sleep 600 & wait'; {FOREVER}"
    low = cluster.sbatch(script, "--partition=low", "--nodes=3", "--exclusive", "--ntasks=1")
    said(cluster, low, "started")
    high = cluster.sbatch(FOREVER, "--partition=high", "--nodes=3", "--exclusive")
    said(cluster, low, "notice")
    during_grace = cluster.job(low)
    assert during_grace["JobState"] == "RUNNING"
    assert during_grace["PreemptTime"] != "None"
    assert cluster.wait_for_state(low, "PENDING")["Restarts"] == "1"
    cluster.wait_for_state(high, "RUNNING")
    assert cluster.sacct(low)[0]["State"] == "PREEMPTED"


def test_a_requeue_from_the_exit_trap_brings_the_job_back(cluster: Cluster) -> None:
    script = """
        requeue() { [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || scontrol requeue "$SLURM_JOB_ID"; }
        trap requeue EXIT
        echo "attempt ${SLURM_RESTART_COUNT:-0}"
    """
    job_id = cluster.sbatch(script)
    attempts = cluster.wait_for_end(job_id, deadline_s=25)
    assert [row["State"] for row in attempts] == ["REQUEUED", "COMPLETED"]
    assert cluster.output(job_id).splitlines()[-1] == "attempt 1"


@pytest.mark.slow
def test_a_lost_node_requeues_its_job_and_can_be_restored(cluster: Cluster) -> None:
    script = f"srun bash -c 'echo $SLURM_JOB_NODELIST; {FOREVER}'"
    job_id = cluster.sbatch(script, "--nodes=2", "--ntasks-per-node=1")
    said(cluster, job_id, "n[1-2]\nn[1-2]\n")
    cluster.lose_node("n2")
    assert not _tasks_on(cluster, "n2")
    assert not _listening_below(cluster.layout.root / "spool-n2")
    fields = cluster.wait_for_restart(job_id, 1)
    assert fields["NodeList"] == "n[1,3]"
    assert cluster.sacct(job_id)[0]["State"] == "NODE_FAIL"
    assert "DOWN" in cluster.nodes()["n2"]
    cluster.restore_node("n2")
    assert cluster.nodes()["n2"] == "IDLE"


def _tasks_on(cluster: Cluster, node: str) -> list[psutil.Process]:
    return matching({"SLURM_CONF": cluster.variables["SLURM_CONF"], "SLURMD_NODENAME": node})


def _listening_below(path: Path) -> list[str]:
    """Unix sockets of living processes; each slurmstepd has one in the spool directory of its node."""
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if f"{path}/" in line]


def test_a_job_without_requeue_ends_when_its_node_is_lost(cluster: Cluster) -> None:
    job_id = cluster.sbatch(f"echo started; {FOREVER}", "--no-requeue")
    said(cluster, job_id, "started")
    cluster.lose_node(cluster.job(job_id)["NodeList"], declare=True)
    assert cluster.wait_for_end(job_id)[-1]["State"] == "NODE_FAIL"


@pytest.mark.slow
def test_the_time_limit_can_be_moved_close(cluster: Cluster) -> None:
    warned = cluster.sbatch('trap "echo notice" TERM; echo started; sleep 600 & wait; wait', "--signal=B:TERM@5")
    ended = cluster.sbatch(f"echo started; {FOREVER}")
    for job_id, seconds in ((warned, 34), (ended, 1)):
        said(cluster, job_id, "started")
        cluster.set_end_time(job_id, seconds)
    said(cluster, warned, "notice", deadline_s=35)
    assert cluster.state(warned) == "RUNNING"
    assert cluster.wait_for_end(ended)[-1]["State"] == "TIMEOUT"


@pytest.mark.slow
def test_operator_requeue_and_user_cancel(cluster: Cluster) -> None:
    job_id = cluster.sbatch(FOREVER)
    cluster.wait_for_state(job_id, "RUNNING")
    cluster.requeue(job_id)
    cluster.wait_for_restart(job_id, 1)
    cluster.cancel(job_id)
    assert cluster.wait_for_end(job_id)[-1]["State"] == "CANCELLED by 0"


def test_waiting_for_a_state_that_cannot_come_fails_at_once(cluster: Cluster) -> None:
    job_id = cluster.sbatch("exit 3")
    with pytest.raises(AssertionError, match="JobState=FAILED"):
        cluster.wait_for_state(job_id, "COMPLETED")


def test_the_variables_of_an_image_win_unless_named(cluster: Cluster) -> None:
    image = cluster.add_image("with-env", {"OF_BOTH": "image", "NAMED": "image", "OF_IMAGE": "image"})
    script = f"""
        export OF_BOTH=job NAMED=job OF_JOB=job
        {in_container("echo $OF_BOTH $NAMED $OF_IMAGE $OF_JOB", "--container-env=NAMED,UNSET", image=image)}
    """
    assert output_of(cluster, script) == "image job image job\n"


def test_a_container_sees_its_mounts_and_a_private_tmp(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    command = "pwd; touch /nemo_run/made; ls /tmp/own 2>/dev/null; touch /tmp/own"
    options = ["--container-mounts", f"{tmp_path}:/nemo_run,/etc:/mnt/etc:ro", "--container-workdir", "/nemo_run/code"]
    script = in_container(command, *options, "--no-container-mount-home")
    seen = output_of(cluster, f"{script}\n{script}\n{in_container(f'ls {tmp_path} || true')} 2>&1")
    assert (tmp_path / "made").exists()
    assert not Path("/tmp/own").exists()
    lines = seen.splitlines()
    assert lines[:2] == ["/nemo_run/code", "/nemo_run/code"], "the second step has a /tmp of its own"
    assert "No such file or directory" in lines[2]


def test_tasks_of_a_step_share_the_tmp_of_their_node(cluster: Cluster) -> None:
    wait = "until [ -e /tmp/0 ] && [ -e /tmp/1 ]; do sleep 0.1; done"
    output_of(cluster, in_container(f"touch /tmp/$SLURM_LOCALID; {wait}"), "--ntasks=2", "--nodes=1")


def test_a_container_has_python_and_the_repository_but_no_slurm(cluster: Cluster) -> None:
    script = "; ".join(
        [
            "command -v scontrol sbatch srun || echo none",
            "ls /run",
            'python -c "import nemo_resiliency_plugins as it; print(it.__file__)"',
            f"touch {REPOSITORY}/written 2>/dev/null || echo read-only",
        ]
    )
    lines = output_of(cluster, in_container(script)).splitlines()
    assert lines == ["none", str(REPOSITORY / "nemo_resiliency_plugins" / "__init__.py"), "read-only"]


def test_signals_reach_the_task_in_a_container_and_its_code_comes_out(cluster: Cluster) -> None:
    script = in_container('trap "echo caught; exit 5" TERM; echo started; while sleep 0.1; do :; done')
    job_id = cluster.sbatch(script)
    said(cluster, job_id, "started")
    cluster.cancel(job_id, "--signal=TERM")
    assert cluster.wait_for_end(job_id)[-1]["ExitCode"] == "5:0"
    assert "caught" in cluster.output(job_id)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--container-image=none"], "no image none"),
        (["--container-image=base", "--container-mounts=/none:/x"], "/none of --container-mounts does not exist"),
        (["--container-image=base", "--container-name=x"], "does not know --container-name"),
        (["--container-mounts=/etc:/x"], "without --container-image"),
    ],
)
def test_container_options_that_cannot_work_are_refused(cluster: Cluster, options: list[str], message: str) -> None:
    with pytest.raises(SlurmError, match=message):
        cluster.run("srun", *options, "true")


@pytest.mark.parametrize(
    ("arguments", "container", "options", "command"),
    [
        ("-N2 -n 2 a -n 3", {}, "-N2 -n 2", "a -n 3"),
        ("--output o --container-image i --wait=60 a b", {"container-image": "i"}, "--output o --wait=60", "a b"),
        ("-l --overlap --no-container-mount-home -- a", {"no-container-mount-home": "yes"}, "-l --overlap", "a"),
        ("-lN 2 --kill-on-bad-exit=1 a --container-image=x", {}, "-lN 2 --kill-on-bad-exit=1", "a --container-image=x"),
        ("--container-image=a=b --no-kill c", {"container-image": "a=b"}, "--no-kill", "c"),
    ],
)
def test_container_options_are_taken_out(arguments: str, container: dict[str, str], options: str, command: str) -> None:
    assert pyxis.split(arguments.split()) == (container, options.split(), command.split())


def test_values_with_spaces_are_parsed() -> None:
    fields = parse_fields(
        "JobId=1 JobName=a b UserId=root(0) TRES=cpu=2,mem=1M Socks/Node=* Command=/x y.sh z=1 WorkDir=/"
    )
    assert fields["JobName"] == "a b"
    assert fields["TRES"] == "cpu=2,mem=1M"
    assert fields["Command"] == "/x y.sh z=1"


def test_the_shell_commands(cluster: Cluster) -> None:
    exports = _testbed("env", cluster).stdout
    shell = ["bash", "-c", f"{exports}\nsinfo --noheader --format=%D && type -p srun"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {str(len(NODES)), str(cluster.layout.bin / "srun")}
    assert "n[1-3]" in _testbed("status", cluster).stdout


def _testbed(verb: str, cluster: Cluster) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.slurm.testbed", verb, "--root", str(cluster.layout.root)]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_start_over_the_leftovers_of_another_and_a_stop_that_leaves_nothing() -> None:
    root = Path("/tmp/nrp-slurm-leftovers")
    try:
        Cluster(root).start()
        first = Cluster(root)
        first.sbatch("sleep 600 & setsid sleep 600 & wait", "--nodes=1")
        wait_for(lambda: len(_tasks_on(first, "n1")) >= 3, what="the job's processes")
        before = _of(root)
        Cluster(root).start()
        assert not before & _of(root)
        assert Cluster(root).nodes() == dict.fromkeys(NODES, "IDLE")
    finally:
        Cluster(root).stop()
    assert not _of(root)
    assert not _listening_below(root)
    assert not root.exists()


def _of(root: Path) -> set[psutil.Process]:
    return set(Cluster(root)._daemons.all())


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").touch()
    with pytest.raises(TestbedError, match="holds no testbed"):
        Cluster(tmp_path).stop()
    assert (tmp_path / "thesis").exists()
