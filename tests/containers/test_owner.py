"""A container is left over only if its tuner is certainly dead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autotune.engines.containers.owner import is_dead, owner
from autotune.engines.containers.runtime import listening_inodes

FIELDS = ("user", "host", "boot", "namespace", "pid", "started")


def token(**changes: str) -> str:
    return "/".join({**dict(zip(FIELDS, owner().split("/"), strict=True)), **changes}.values())


def test_this_process_lives() -> None:
    assert not is_dead(owner())


def test_a_process_that_ended_is_dead() -> None:
    code = "from autotune.engines.containers.owner import owner; print(owner())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert is_dead(done.stdout.strip())


def test_one_before_the_last_boot_is_dead() -> None:
    assert is_dead(token(boot="another"))


def test_a_pid_that_another_process_has_now_is_dead() -> None:
    assert is_dead(token(started="1"))


@pytest.mark.parametrize("field", ["user", "host"])
def test_of_another_user_or_machine_nothing_is_known_even_after_a_boot(field: str) -> None:
    assert not is_dead(token(**{field: "other"}))
    assert not is_dead(token(**{field: "other", "boot": "another", "started": "1"}))


def test_of_another_pid_namespace_nothing_is_known() -> None:
    assert not is_dead(token(namespace="pid:[1]", started="1"))


@pytest.mark.parametrize("text", ["", "x", "1/2/3", "<no value>"])
def test_a_label_that_is_no_owner_is_nobodys_to_remove(text: str) -> None:
    assert not is_dead(text)


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 398139 1 ffff 100 0 0 10 0
   1: 0100007F:1F40 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000     0        0 555555 1 ffff 20 4 30 10 -1
  10: 00000000000000000000000000000000:1F41 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 7 1
"""


def test_sockets_that_listen_are_told_from_connections_on_the_same_port() -> None:
    assert listening_inodes(TCP, 8000) == ["398139"]
    assert listening_inodes(TCP, 8001) == ["7"]
    assert listening_inodes(TCP, 80) == []
