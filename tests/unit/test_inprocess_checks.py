from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.compat.inprocess import names, wanted_by
from nemo_resiliency_plugins.compat.nvrx import MONITOR_SOCKET
from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.errors import ConfigError, ResiliencyError, UnsupportedError
from nemo_resiliency_plugins.runtime.in_process import checks
from nemo_resiliency_plugins.runtime.in_process.meeting import adopt_numbers

PLACE = {"WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
CallWrapper = names().call_wrapper


def enabled(**fields: Any) -> InProcessRestartConfig:
    return InProcessRestartConfig(enabled=True, **fields)


def test_unset_variables_are_set() -> None:
    env = {"TORCH_CPP_LOG_LEVEL": "FATAL"}
    checks.set_variables(env, torch_is_loaded=True)
    wanted = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_NVLS_ENABLE": "0"}
    assert env == {"TORCH_CPP_LOG_LEVEL": "FATAL", **wanted}


def test_a_log_level_that_torch_no_longer_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Export TORCH_CPP_LOG_LEVEL=error before the start"):
        checks.set_variables({}, torch_is_loaded=True)
    env: dict[str, str] = {}
    checks.set_variables(env, torch_is_loaded=False)
    assert env["TORCH_CPP_LOG_LEVEL"] == "error"


@pytest.mark.parametrize("name", checks.VARIABLES)
def test_a_contradicting_variable_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}='1'.*export {name}="):
        checks.set_variables({name: "1"}, torch_is_loaded=False)


@pytest.mark.parametrize(
    ("torch_version", "nccl", "what"),
    [
        ("2.5.0+cu124", None, "torch"),
        ("2.4.1", (2, 27, 5), "torch"),
        ("2.6.0", (2, 26, 1), "NCCL"),
        ("2.11.0", (2, 28, 3), "NCCL"),
        ("2.11.0", (2, 28, 8), "NCCL"),
    ],
)
def test_versions_that_cannot_work_are_refused(torch_version: str, nccl: tuple[int, ...] | None, what: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        checks.check_versions(torch_version, nccl, {})
    assert caught.value.field == what


@pytest.mark.parametrize("nccl", [None, (2, 26, 2), (2, 28, 2), (2, 28, 9)])
def test_other_versions_pass(nccl: tuple[int, ...] | None) -> None:
    checks.check_versions("2.5.1+cpu", nccl, {})


def test_nccl_can_be_tried_all_the_same() -> None:
    checks.check_versions("2.11.0", (2, 28, 5), {checks.ENV_ANY_NCCL: "1"})


@pytest.mark.parametrize(
    ("env", "field"),
    [
        ({**PLACE, MONITOR_SOCKET: "/tmp/x"}, MONITOR_SOCKET),
        ({"WORLD_SIZE": "4", "MASTER_PORT": "1"}, "MASTER_ADDR"),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "host"}, "MASTER_PORT"),
        ({**PLACE, "WORLD_SIZE": "2"}, "InProcessRestartConfig.active_world_size"),
        ({**PLACE, checks.WATCHDOG: "90"}, checks.WATCHDOG),
    ],
)
def test_a_place_where_it_cannot_work_is_refused(env: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checks.check_place(enabled(active_world_size=3), env)
    assert caught.value.field == field
    assert caught.value.remedy


def test_a_place_where_it_can_work_passes() -> None:
    checks.check_place(enabled(active_world_size=4), {**PLACE, checks.WATCHDOG: "91"})


def test_a_hard_timeout_beyond_the_watchdogs_default_is_refused() -> None:
    config = enabled(hard_timeout=480.0, barrier_timeout=600.0)
    with pytest.raises(ConfigError, match=r"must be above hard_timeout=480"):
        checks.check_place(config, PLACE)


def test_another_thread_is_refused() -> None:
    caught: list[ResiliencyError] = []

    def check() -> None:
        try:
            checks.check_place(enabled(), PLACE)
        except UnsupportedError as error:
            caught.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert "main thread" in str(caught)


def test_a_process_group_from_before_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in checks.VARIABLES:
        monkeypatch.setenv(name, checks.VARIABLES[name][0])
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    wrapped = runtime.inprocess(lambda: pytest.fail("was called"), enabled())
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match=r"init_process_group.*Move it into the train function"):
            wrapped()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("seconds", "refused"), [(90, True), (91, False)])
def test_an_nccl_group_must_outlast_the_hard_timeout(
    monkeypatch: pytest.MonkeyPatch, seconds: int, refused: bool
) -> None:
    backend = SimpleNamespace(name=lambda: "nccl", options=SimpleNamespace(_timeout=timedelta(seconds=seconds)))
    group = mock.Mock(_get_backend=lambda device: backend)
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map={group: ("nccl", None)}))
    if not refused:
        return checks.check_group_timeouts(90.0)
    with pytest.raises(ConfigError, match="process group timeout='90 s'"):
        checks.check_group_timeouts(90.0)
    return None


def test_gloo_groups_end_nobodys_process() -> None:
    def without_nccl(device: object) -> object:
        raise RuntimeError("no backend type associated with device type cuda")

    assert checks.nccl_timeout_s(SimpleNamespace(_get_backend=without_nccl)) is None
    gloo = SimpleNamespace(name=lambda: "gloo", options=None)
    assert checks.nccl_timeout_s(SimpleNamespace(_get_backend=lambda device: gloo)) is None


def test_switched_off_it_is_the_function_itself() -> None:
    def train() -> None: ...

    assert runtime.inprocess(train) is train
    assert runtime.inprocess(train, InProcessRestartConfig()) is train


def test_srun_numbers_are_taken_over_where_nobody_has_set_others() -> None:
    env = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    adopt_numbers(env)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("3", "8", "1")
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "1", "WORLD_SIZE": "2"}
    adopt_numbers(env)
    assert (env["RANK"], env["WORLD_SIZE"]) == ("1", "2")


def test_a_process_that_nobody_has_started_is_alone() -> None:
    env: dict[str, str] = {}
    adopt_numbers(env)
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")


def plain(a: int, call: Any = None) -> None: ...
def quoted(a: int, call: inprocess.CallWrapper | None = None) -> None: ...  # noqa: F821
def quoted_option(call: Optional[CallWrapper] = None) -> None: ...  # noqa: F821
def variadic(*args: Any, **kwargs: Any) -> None: ...


def annotated(call: Any = None) -> None: ...


annotated.__annotations__["call"] = CallWrapper


def optional(call: Any = None) -> None: ...


optional.__annotations__["call"] = CallWrapper | None


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (plain, []),
        (variadic, []),
        (print, []),
        (quoted, ["call"]),
        (quoted_option, ["call"]),
        (annotated, ["call"]),
        (optional, ["call"]),
    ],
)
def test_the_parameter_for_the_call_wrapper_is_found(function: Any, found: list[str]) -> None:
    assert wanted_by(function) == found
