"""The filter of system calls, run as Linux runs it, for both processors; and refused where none is known."""

from __future__ import annotations

import errno
import struct

import pytest

from helpers.grading.sandbox import seccomp

ALLOWED, EPERM = "allowed", errno.EPERM
HEADERS = {  # numbers as <asm/unistd.h> has them: read, openat, getpid, futex, execve, clone, socket, ptrace
    "x86_64": {"read": 0, "openat": 257, "getpid": 39, "futex": 202, "execve": 59, "mmap": 9, "connect": 42},
    "aarch64": {"read": 63, "openat": 56, "getpid": 172, "futex": 98, "execve": 221, "mmap": 222, "connect": 203},
}
MACHINES = list(seccomp.ARCHITECTURES)


def answer(machine, number, argument=0, architecture=None):
    """What the filter says of a call: a small machine of classic BPF."""
    architecture = seccomp.ARCHITECTURES[machine] if architecture is None else architecture
    data = struct.pack("=iIQ6Q", number, architecture, 0, argument, 0, 0, 0, 0, 0)
    steps = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            loaded = struct.unpack_from("=I", data, value)[0]
        elif code == 0x06:
            return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF if value >> 16 == 5 else value
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_lab_needs_is_allowed(machine):
    for number in HEADERS[machine].values():
        assert answer(machine, number) == ALLOWED
    clone, column = seccomp.CLONE[MACHINES.index(machine)], MACHINES.index(machine)
    assert answer(machine, clone, 0x3D0F00) == ALLOWED  # a thread
    assert answer(machine, clone, 17) == ALLOWED  # a fork
    for numbers in seccomp.SOCKETS.values():
        assert [answer(machine, numbers[column], family) for family in (1, 2, 10, 16)] == [ALLOWED] * 4


@pytest.mark.parametrize("machine", MACHINES)
def test_what_no_lab_needs_is_refused(machine):
    column = MACHINES.index(machine)
    for name, numbers in seccomp.REFUSED.items():
        assert answer(machine, numbers[column]) == EPERM, name
    for numbers in seccomp.SOCKETS.values():  # no family, AX25, AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP, one that is none
        found = [answer(machine, numbers[column], family) for family in (0, 3, 17, 38, 40, 44, 2**31)]
        assert found == [errno.EAFNOSUPPORT] * 7
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, seccomp.CLONE[column], flag | 17) == EPERM
    assert answer(machine, seccomp.CLONE3) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_no_other_architecture_walks_round_it(machine):
    i386, read = 0x40000003, HEADERS[machine]["read"]
    assert answer(machine, read, architecture=i386) == EPERM
    assert answer(machine, read | 0x40000000) == EPERM  # x32
    assert answer(machine, -1) == EPERM


def test_an_unknown_processor_has_no_filter():
    with pytest.raises(OSError, match="no filter of system calls is known for riscv64") as caught:
        seccomp.program("riscv64")
    assert caught.value.errno == errno.ENOSYS
