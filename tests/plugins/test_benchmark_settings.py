"""What the GPU benchmark calls ours is what FaultTolerancePlugin makes of the job, without NeMo-Run."""

from __future__ import annotations

from pathlib import Path

import nemo_run as run

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.benchmarks import faulted
from tests.submission import submission


def test_limits_and_variables_are_those_of_the_plugin(tmp_path: Path) -> None:
    plugin = FaultTolerancePlugin(rank_heartbeat_timeout=faulted.STEP_TIMEOUT_S)
    task = run.Script(faulted.SCRIPT, entrypoint="python")
    started = submission(task, run.LocalExecutor(ntasks_per_node=faulted.RANKS), [plugin], tmp_path)
    own = faulted.our_variables(Path(started.env["PET_FT_CFG_PATH"]))
    assert faulted.our_limits() == plugin.monitor_settings()
    assert plugin.prestart_imports == faulted.PRESTART
    assert own == {name: value for name, value in started.env.items() if name in own}
    told = {name for name in started.env if name.startswith(("NRP_FAULT", "PET_"))}
    assert told <= set(own)
    assert f"--max-restarts {faulted.RESTARTS}" in " ".join(started.command)
