"""Scripts for plain ``sbatch``: what they say, and what they do with a stub of srun."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nemo_resiliency_plugins import (
    ConfigError,
    ConflictError,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    StragglerPlugin,
)
from nemo_resiliency_plugins.cli.main import app
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.plain_slurm import sbatch_script, submitit_parameters

README = Path(__file__).parents[2] / "README.md"
SRUN = """\
#!/bin/bash
printf '%s\\n' "$@" > "$SEEN"
env > "$SEEN.env"
cp -r "$NRP_DIR" "$SEEN.nrp"
exit 42
"""
SCONTROL = """\
#!/bin/bash
echo 'JobId=7 JobState=RUNNING Reason=None PreemptTime=None EndTime=Unknown X=1'
"""
COMMAND = ["python", "tr ain.py", "--y={a,b}", "$HOME", "*", ""]
KINDS: dict[str, tuple[list[ResiliencyPlugin], dict[str, Any]]] = {
    "fault-tolerance": ([FaultTolerancePlugin(num_job_retries_on_failure=0)], {}),
    "preemption": ([PreemptionPlugin(preempt_time=30, signal="USR2")], {"launcher": "torchrun"}),
    "inprocess": ([InProcessRestartPlugin(max_iterations=3)], {}),
}


def script(kind: str, directory: str, **options: Any) -> str:
    plugins, own = KINDS[kind]
    return sbatch_script(plugins, COMMAND, directory=directory, nodes=2, ranks_per_node=4, **own, **options)


def request(text: str) -> list[str]:
    return re.findall(r"^#SBATCH (.*)$", text, flags=re.MULTILINE)


def run(tmp_path: Path, text: str, **env: str) -> tuple[int, list[str]]:
    """Run the script with stubs of Slurm's commands: its exit code and the arguments that srun got."""
    for name, stub in {"srun": SRUN, "scontrol": SCONTROL, "sinfo": "#!/bin/bash\n"}.items():
        (tmp_path / name).write_text(stub)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "script").write_text(text)
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SEEN": f"{tmp_path}/seen"}
    done = subprocess.run(["bash", str(tmp_path / "script")], env={**own, **env}, capture_output=True, check=False)
    return done.returncode, (tmp_path / "seen").read_text().splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_reaches_the_node_script_word_by_word(tmp_path: Path, kind: str) -> None:
    directory = f"{tmp_path}/it's $HOME"
    code, arguments = run(tmp_path, script(kind, directory, python="py"))
    assert code == 42, "the exit code of the step is that of the script"
    assert arguments[-9:] == ["py", "-m", "nemo_resiliency_plugins.runtime.node", *COMMAND]
    assert (Path(directory) / "7" / "policy.json").exists()
    settings = json.loads((tmp_path / "seen.nrp" / "config.json").read_text())
    assert (settings["node"]["nnodes"], settings["node"]["nproc"]) == ("2:2", 4)
    assert (tmp_path / "seen.nrp" / "ft.yaml").exists() == (kind == "fault-tolerance")


def test_the_request_is_that_of_the_plugins(tmp_path: Path) -> None:
    assert request(script("fault-tolerance", "/d")) == [
        "--nodes=2",
        "--ntasks-per-node=1",
        "--no-requeue",
        "--open-mode=append",
    ]
    assert "--signal=USR2@30" in request(script("preemption", "/d"))
    assert "--requeue" in request(script("preemption", "/d"))
    assert request(script("inprocess", "/d"))[1:3] == ["--ntasks-per-node=4", "--no-kill"]


def test_a_lost_rank_ends_the_step_unless_the_others_restart_in_their_processes(tmp_path: Path) -> None:
    assert run(tmp_path, script("fault-tolerance", f"{tmp_path}/d"))[1][:2] == ["--wait=60", "--kill-on-bad-exit=1"]
    assert run(tmp_path, script("inprocess", f"{tmp_path}/d"))[1][:3] == [
        "--wait=0",
        "--kill-on-bad-exit=0",
        "--no-kill",
    ]


def test_plugins_combine_as_they_do_on_an_executor(tmp_path: Path) -> None:
    plugins = [StragglerPlugin(report_time_interval=9), PreemptionPlugin(), FaultTolerancePlugin()]
    text = sbatch_script(plugins, ["python"], directory=f"{tmp_path}/d", variables={"A": "b  $c"})
    run(tmp_path, text)
    settings = json.loads((tmp_path / "seen.nrp" / "config.json").read_text())
    assert settings["node"]["kind"] == "ft"
    assert settings["straggler"]["report_time_interval"] == 9
    assert settings["preemption"]["exit_signal_handler"] is True
    assert "A=b  $c" in (tmp_path / "seen.env").read_text().splitlines()


def test_a_job_that_continues_another_one_goes_on_in_its_directory(tmp_path: Path) -> None:
    text = script("preemption", f"{tmp_path}/d")
    run(tmp_path, text, NRP_CONTINUES=f"{tmp_path}/d/6")
    seen = (tmp_path / "seen.env").read_text().splitlines()
    assert f"NRP_DIR={tmp_path}/d/6" in seen
    assert not [line for line in seen if line.startswith("NRP_CONTINUES")], "the training's own jobs inherit nothing"


@pytest.mark.parametrize(
    "option", ["", "--time=1\n#SBATCH --nodes=9", "--nodes=3", "-N3", "--time 1", "--signal=USR1@9", "time=1"]
)
def test_an_option_that_is_not_the_users_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=r"must be --NAME|set by the script"):
        script("preemption", "/d", options=[option])


def test_options_stand_in_the_script() -> None:
    text = script(
        "preemption", "/d", options=["--time=1:00:00", "--comment=a b", "--nodelist=n1"], setup=["module load x"]
    )
    assert request(text)[-3:] == ["--time=1:00:00", "'--comment=a b'", "--nodelist=n1"]
    assert "\nmodule load x\n" in text


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"preempt_time=30: must be shorter than the time limit"):
        script("preemption", "/d", options=["--time=0:20"])
    with pytest.raises(ConfigError, match=r"plugins=.*is empty"):
        sbatch_script([], ["python"], directory="/d")
    with pytest.raises(ConfigError, match=r"directory='~/nrp': must be absolute"):
        script("preemption", "~/nrp")
    with pytest.raises(ConfigError, match=r"command=.*is empty"):
        sbatch_script([PreemptionPlugin()], [], directory="/d")
    with pytest.raises(ConfigError, match="overrides"):
        sbatch_script([PreemptionPlugin(overrides="megatron_bridge")], ["python"], directory="/d")


def test_a_launcher_inside_the_launcher_is_refused() -> None:
    with pytest.raises(ConflictError, match=r"^command='torchrun': FaultTolerancePlugin starts .* 4 on each node"):
        sbatch_script([FaultTolerancePlugin()], ["torchrun", "train.py"], directory="/shared/nrp", ranks_per_node=4)


def test_one_launcher_inside_the_launcher_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    sbatch_script([FaultTolerancePlugin(), PreemptionPlugin()], ["torchrun", "train.py"], directory="/shared/nrp")
    said = "FaultTolerancePlugin: starts the ranks with a launcher already, and each of them would start torchrun. "
    assert [line for line in caplog.messages if "torchrun" in line] == [
        f"{said}The ranks that it starts are not watched"
    ]


def test_submitit_is_told_the_same() -> None:
    told = submitit_parameters([FaultTolerancePlugin()], directory="/d", nodes=2, ranks_per_node=4)
    assert (told["nodes"], told["tasks_per_node"]) == (2, 1)
    assert told["slurm_additional_parameters"] == {"signal": "CONT@1", "requeue": True}
    assert "\n".join(told["slurm_setup"]) in sbatch_script(
        [FaultTolerancePlugin()], ["python"], directory="/d", nodes=2, ranks_per_node=4
    )


def cli(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["sbatch", *arguments])
    return done.exit_code, done.output


def test_the_verb_prints_what_the_function_returns() -> None:
    words = ["--directory", "/d", "--nodes", "2", "--ranks-per-node", "4", "--option=--time=1:00:00", "--env", "A=b=c"]
    fields = ["--set", "fault_script=kill@1:8", "--set", "preemption.preempt_time=90", "--with", "straggler"]
    code, text = cli("fault-tolerance", *words, *fields, "--", "python", "train.py", "--steps", "9")
    plugins = [FaultTolerancePlugin(fault_script="kill@1:8"), StragglerPlugin(), PreemptionPlugin(preempt_time=90)]
    expected = sbatch_script(
        plugins,
        ["python", "train.py", "--steps", "9"],
        directory="/d",
        nodes=2,
        ranks_per_node=4,
        variables={"A": "b=c"},
        options=["--time=1:00:00"],
    )
    assert (code, text) == (0, expected)


def test_the_command_of_the_readme_prints_a_script() -> None:
    [block] = re.findall(r"```bash\n(nemo-resiliency sbatch .*?) > train.sbatch\n```", README.read_text(), re.DOTALL)
    code, text = cli(*shlex.split(block)[2:])
    assert code == 0, text
    assert request(text)[:3] == ["--nodes=4", "--ntasks-per-node=1", "--signal=TERM@60"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "nonsense=1"], "no such field"),
        (["--set", "nonsense.a=1"], "is unknown"),
        (["--with", "nonsense"], "is unknown"),
        (["--env", "A"], "must be NAME=VALUE"),
        (["--set", "preempt_time=-1"], "preempt_time=-1"),
        (
            ["--with", "fault-tolerance", "--retries", "5"],
            "--retries=5: num_job_retries_on_failure=2 of FaultToleranceP",
        ),
        (["--with", "fault-tolerance", "--srun-option=-K0"], "--srun-option='-K0'"),
        (["--option=--nodes=3"], "--option='--nodes=3'"),
        (["--option=--time=1", "--set", "preempt_time=90"], "must be shorter than the time limit 1."),
    ],
)
def test_the_verb_says_what_is_wrong(arguments: list[str], message: str) -> None:
    code, text = cli("preemption", "--directory", "/d", *arguments, "--", "python", "train.py")
    assert code == 2
    assert message in text


@pytest.mark.parametrize("order", [1, -1])
def test_two_numbers_of_retries_are_a_conflict_in_either_order(order: int) -> None:
    plugins = [FaultTolerancePlugin(), PreemptionPlugin()][::order]
    with pytest.raises(ConflictError, match=r"^retries=5: num_job_retries_on_failure=2 .* Leave it out"):
        sbatch_script(plugins, ["python"], directory="/d", retries=5)
    same = [FaultTolerancePlugin(num_job_retries_on_failure=5), PreemptionPlugin()][::order]
    assert "nrp_max_failures=5\n" in sbatch_script(same, ["python"], directory="/d", retries=5)


def test_an_error_names_the_parameters_of_the_function() -> None:
    with pytest.raises(ConflictError, match=r"^launcher="):
        submitit_parameters([InProcessRestartPlugin()], directory="/d", launcher="torchrun")
    with pytest.raises(ConflictError, match=r"^variables\['TORCH_CPP_LOG_LEVEL'\]="):
        submitit_parameters([InProcessRestartPlugin()], directory="/d", variables={"TORCH_CPP_LOG_LEVEL": "info"})
    with pytest.raises(TypeError, match="knots"):
        submitit_parameters([PreemptionPlugin()], directory="/d", knots=2)
