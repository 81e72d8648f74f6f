from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.slurm.inprocess import sbatch_script

SRUN = """\
#!/bin/bash
printf '%s\\n' "$@" > "$SEEN"
cp "$NRP_CONFIG" "$SEEN.json"
[ -z "$FINISHED" ] || echo '{"reason": "finished"}' > "$NRP_DIR/verdict-$SLURM_JOB_ID-0-0.json"
exit 137
"""


def run(tmp_path: Path, finished: str) -> tuple[int, list[str], dict[str, object]]:
    """The script with a stub of srun: its exit code, srun's arguments and the configuration of the job."""
    stub = tmp_path / "srun"
    stub.write_text(SRUN)
    stub.chmod(0o755)
    command = ["python", "tr ain.py", "--y={a,b}", "$HOME"]
    text = sbatch_script(
        command, directory=f"{tmp_path}/it's", nodes=2, tasks_per_node=4, fields={"max_iterations": 3}, python="py"
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SEEN": f"{tmp_path}/seen", "FINISHED": finished}
    code = subprocess.run(["bash", "-eu", "-c", f"set +eu\n{text}"], env=env, check=False).returncode
    arguments = (tmp_path / "seen").read_text().splitlines()
    return code, arguments, json.loads((tmp_path / "seen.json").read_text())


def test_a_lost_rank_ends_neither_the_others_nor_a_finished_job(tmp_path: Path) -> None:
    code, arguments, config = run(tmp_path, "yes")
    assert code == 0
    assert arguments == [
        *["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "py", "-m", "nemo_resiliency_plugins.runtime.node"],
        *["python", "tr ain.py", "--y={a,b}", "$HOME"],
    ]
    assert config["inprocess"] == {"enabled": True, "max_iterations": 3}


def test_an_unfinished_job_ends_with_the_code_of_srun(tmp_path: Path) -> None:
    assert run(tmp_path, "")[0] == 137


@pytest.mark.parametrize("option", ["", "--time=1\n#SBATCH --nodes=9"])
def test_an_option_that_is_not_one_line_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="must be one line"):
        sbatch_script(["python"], directory="/d", nodes=1, tasks_per_node=1, options=[option])
