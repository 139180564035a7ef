"""`pgsweep memory kernel`: settings read from a tree, judged, and never set."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import msgspec
import pytest

from pgsweep.errors import MissingAbility
from pgsweep.host.kernel import SYSCTLS, BlockDevice, KernelFacts, read_kernel
from pgsweep.host.procfile import parse_meminfo
from pgsweep.memory.kernel import advise, examine
from pgsweep.pg.catalog.server import ServerProcess
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.kernel import KernelResult, KernelSetting
from pgsweep.records.place import Kind, Place
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json
from pgsweep.ui.views.kernel import kernel_text
from tests.fix_cli import run
from tests.fix_memory import kernel_result

MEMINFO = (Path(__file__).parents[1] / "proc/linux-6.18/meminfo").read_text()
GB = 1 << 30
MEMORY = parse_meminfo(MEMINFO)._replace(
    total=64 * GB, available=60 * GB, swap_total=0, committed=4 * GB, huge_pages=0
)
WELL = KernelFacts(
    memory=MEMORY,
    sysctls={
        "vm.dirty_background_bytes": 256 << 20,
        "vm.dirty_background_ratio": 0,
        "vm.dirty_bytes": GB,
        "vm.dirty_ratio": 0,
        "vm.dirty_expire_centisecs": 3000,
        "vm.dirty_writeback_centisecs": 500,
        "vm.overcommit_memory": 2,
        "vm.overcommit_ratio": 80,
        "vm.overcommit_kbytes": 0,
        "vm.swappiness": 10,
        "vm.zone_reclaim_mode": 0,
        "kernel.numa_balancing": 0,
    },
    transparent_huge_pages="madvise",
    numa_nodes=2,
    postmaster_pid=77,
    postmaster_oom_score_adj=-1000,
    child_oom_score_adj=0,
    data_device=BlockDevice("nvme0n1", 128 << 10, rotational=False),
)


def changed(**sysctls: int) -> KernelFacts:
    names = {name.replace("__", "."): value for name, value in sysctls.items()}
    return dataclasses.replace(WELL, sysctls={**WELL.sysctls, **names})


def not_good(facts: KernelFacts) -> dict[str, KernelSetting]:
    return {setting.name: setting for setting in advise(facts) if not setting.good}


def test_a_host_that_is_set_up_well_gets_no_advice() -> None:
    assert not_good(WELL) == {}
    for setting in advise(WELL):
        assert setting.recommendation is None
        assert setting.command is None
        assert setting.reason
        assert setting.source.startswith(("PostgreSQL: ", "kernel: "))
        assert setting.certainty in ("documented", "experience")


@pytest.mark.parametrize(
    ("facts", "name", "words"),
    [
        (
            changed(vm__dirty_background_bytes=0, vm__dirty_background_ratio=10, vm__dirty_bytes=8 * GB),
            "vm.dirty_background_ratio",
            "6 GB",
        ),
        (
            changed(vm__dirty_background_bytes=4 * GB, vm__dirty_bytes=6 * GB),
            "vm.dirty_background_bytes",
            "4 GB",
        ),
        (changed(vm__dirty_bytes=0, vm__dirty_ratio=20), "vm.dirty_ratio", "12 GB"),
        (changed(vm__dirty_bytes=100 << 20), "vm.dirty_bytes", "100 MB"),
        (changed(vm__dirty_expire_centisecs=60000), "vm.dirty_expire_centisecs", "60000"),
        (changed(vm__dirty_writeback_centisecs=0), "vm.dirty_writeback_centisecs", "0"),
        (changed(vm__overcommit_memory=0), "vm.overcommit_memory", "0"),
        (changed(vm__overcommit_ratio=50), "vm.overcommit_ratio", "50"),
        (
            dataclasses.replace(WELL, transparent_huge_pages="always"),
            "transparent_hugepage/enabled",
            "always",
        ),
        (changed(vm__zone_reclaim_mode=1), "vm.zone_reclaim_mode", "1"),
        (changed(kernel__numa_balancing=1), "kernel.numa_balancing", "1"),
        (dataclasses.replace(WELL, postmaster_oom_score_adj=0), "oom_score_adj of the postmaster", "0"),
        (
            dataclasses.replace(WELL, child_oom_score_adj=-1000),
            "oom_score_adj of the postmaster",
            "-1000",
        ),
        (
            dataclasses.replace(WELL, data_device=BlockDevice("sda", 128 << 10, rotational=True)),
            "read_ahead_kb of sda",
            "128",
        ),
    ],
)
def test_each_setting_is_judged(facts: KernelFacts, name: str, words: str) -> None:
    found = not_good(facts)
    assert list(found) == [name]
    assert words in found[name].value
    assert found[name].recommendation


def test_swappiness_matters_only_with_swap() -> None:
    assert not_good(changed(vm__swappiness=60)) == {}
    swap = MEMORY._replace(swap_total=8 * GB)
    for value in (0, 60):
        assert list(not_good(dataclasses.replace(changed(vm__swappiness=value), memory=swap))) == [
            "vm.swappiness"
        ]


def test_the_ratio_is_set_before_overcommit_is_forbidden() -> None:
    """The other way round the host might at once refuse memory to everybody."""
    facts = changed(vm__overcommit_memory=0, vm__overcommit_ratio=50)
    commands = [setting.command for setting in advise(facts) if setting.command]
    assert [command.partition("  #")[0] for command in commands] == [
        "sysctl -w vm.overcommit_ratio=80",
        "sysctl -w vm.overcommit_memory=2",
    ]
    assert "only where nothing but PostgreSQL runs" in commands[1]


def committed(gigabytes: float, **sysctls: int) -> KernelFacts:
    """Return a host of 64 GB that has promised so much."""
    memory = MEMORY._replace(committed=round(gigabytes * GB))
    return dataclasses.replace(changed(**sysctls), memory=memory)


def test_no_limit_is_advised_below_what_is_committed() -> None:
    """With it every fork would fail."""
    for promised in (52, 60, 200):
        found = {one.name: one for one in advise(committed(promised, vm__overcommit_memory=0))}
        for name in ("vm.overcommit_memory", "vm.overcommit_ratio"):
            assert (found[name].command, found[name].recommendation) == (None, None)
        assert "every fork would fail" in found["vm.overcommit_memory"].reason
        strict = {one.name: one for one in advise(committed(promised))}
        assert strict["vm.overcommit_ratio"].command is None
        assert not strict["vm.overcommit_ratio"].good
    # 45 GB and a quarter of it are 88% of 64 GB.
    found = {one.name: one for one in advise(committed(45, vm__overcommit_memory=0))}
    assert found["vm.overcommit_ratio"].command == "sysctl -w vm.overcommit_ratio=88"


@pytest.mark.parametrize("kind", ["pod", "container", "lxc"])
def test_in_a_container_overcommit_is_not_spoken_of(kind: Kind) -> None:
    facts = dataclasses.replace(changed(vm__overcommit_memory=0), place=Place(kind=kind))
    assert not any("overcommit" in one.name for one in advise(facts))
    beside = dataclasses.replace(changed(vm__overcommit_memory=1), place=Place(kind="systemd"))
    for others in (False, True):
        found = advise(dataclasses.replace(beside, runs_containers=others))
        assert any("overcommit" in one.name for one in found) != others
    scored = dataclasses.replace(facts, postmaster_oom_score_adj=0)
    assert "systemd" not in (not_good(scored)["oom_score_adj of the postmaster"].recommendation or "")


def test_no_command_lowers_the_score_of_the_postmaster_alone() -> None:
    """Its children would inherit the score, and nothing would be left to kill."""
    (setting,) = not_good(dataclasses.replace(WELL, postmaster_oom_score_adj=0)).values()
    assert setting.command is None
    assert "PG_OOM_ADJUST_FILE" in (setting.recommendation or "")


def test_settings_are_read_from_files(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    for name in SYSCTLS[:-1]:
        file = proc / "sys" / name.replace(".", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("7\n")
    (proc / "meminfo").write_text(MEMINFO)
    for pid, score in ((77, -900), (78, 0), (79, -900)):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "oom_score_adj").write_text(f"{score}\n")
    (proc / "77/cwd").mkdir()
    (sys / "kernel/mm/transparent_hugepage").mkdir(parents=True)
    (sys / "kernel/mm/transparent_hugepage/enabled").write_text("always [madvise] never\n")
    (sys / "devices/system/node").mkdir(parents=True)
    (sys / "devices/system/node/has_memory").write_text("0-2,5\n")
    number = (proc / "77/cwd").stat().st_dev
    partition = sys / "devices/virtual/block/sdx/sdx1"
    partition.mkdir(parents=True)
    (partition.parent / "queue").mkdir()
    (partition.parent / "queue/read_ahead_kb").write_text("4096\n")
    (partition.parent / "queue/rotational").write_text("1\n")
    (sys / "dev/block").mkdir(parents=True)
    (sys / f"dev/block/{os.major(number)}:{os.minor(number)}").symlink_to(partition)
    facts = read_kernel(77, [78, 79], proc, sys)
    assert facts.sysctls == dict.fromkeys(SYSCTLS[:-1], 7)
    assert facts.transparent_huge_pages == "madvise"
    assert facts.numa_nodes == 4
    assert (facts.postmaster_oom_score_adj, facts.child_oom_score_adj) == (-900, -900)
    assert facts.data_device == BlockDevice("sdx", 4096 << 10, rotational=True)
    # A setting that this kernel does not have is not spoken of.
    assert "kernel.numa_balancing" not in {setting.name for setting in advise(facts)}


def test_the_settings_of_this_host(wheel18: Cluster) -> None:
    before = {name: Path("/proc/sys", name.replace(".", "/")).read_text() for name in SYSCTLS}
    result = examine(wheel18.conninfo())
    assert result.postmaster_pid == wheel18.postmaster_pid
    found = {setting.name: setting.value for setting in result.settings}
    assert found["vm.swappiness"] == before["vm.swappiness"].strip()
    assert found["vm.overcommit_memory"] == before["vm.overcommit_memory"].strip()
    assert "oom_score_adj of the postmaster" in found
    assert {name: Path("/proc/sys", name.replace(".", "/")).read_text() for name in SYSCTLS} == before


def test_without_a_connection_the_host_is_shown() -> None:
    result = examine("host=/nonexistent")
    assert result.server_version is None
    assert [entry.what for entry in result.missing] == ["the server"]
    assert len(result.settings) > 8


def test_a_server_elsewhere_is_refused(wheel18: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import pgsweep.memory.kernel
    import pgsweep.memory.processes

    elsewhere = ServerProcess(backend_pid=4194304, start_time_us=1)
    monkeypatch.setattr(pgsweep.memory.processes, "read_postmaster", lambda _connection: elsewhere)
    monkeypatch.setattr(pgsweep.memory.kernel, "postmasters", list)
    with pytest.raises(MissingAbility) as raised:
        examine(wheel18.conninfo())
    assert raised.value.exit_code == 4


def test_the_command(wheel18: Cluster) -> None:
    done = run("memory", "kernel", wheel18.conninfo(), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "pgsweep.kernel/1"
    assert isinstance(from_json(done.stdout.encode(), "-"), KernelResult)
    text = run("memory", "kernel", wheel18.conninfo()).stdout
    assert "Read, not changed." in text
    assert "vm.swappiness" in text


def test_no_reason_is_cut() -> None:
    """A string that stands as a statement of its own is lost, and the sentence before it ends in a blank."""
    for facts in (WELL, dataclasses.replace(WELL, postmaster_oom_score_adj=0)):
        for setting in advise(facts):
            assert setting.reason == setting.reason.strip(), setting.name
    (oom,) = (s for s in advise(WELL) if s.name == "oom_score_adj of the postmaster")
    assert oom.reason.endswith("the server stops when the postmaster is killed")


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_recommendation_is_wrapped_between_assignments(width: int) -> None:
    settings = advise(dataclasses.replace(WELL, postmaster_oom_score_adj=0))
    result = msgspec.structs.replace(kernel_result(), settings=settings)
    text = kernel_text(result, Terminal(width=width)).partition("\n\nUntil the next boot")[0]
    assert "PG_OOM_ADJUST_VALUE=0" in text
    assert not [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
