"""Landlock: a Linux process gives up access to files, TCP and other processes, for itself and all that it starts.

It needs no privilege and no container; see the kernel's userspace-api/landlock. ABI 1 (Linux 5.13) confines files,
ABI 4 (6.7) TCP, ABI 6 (6.12) signals to processes outside.
"""

import ctypes
import os
import stat
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
NO_NEW_PRIVILEGES = 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
TCP = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def _call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def abi():
    """The version of Landlock that this kernel offers; 0 if none."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def _rights(version):
    """All rights on files that the kernel can take away."""
    rights = (1 << 13) - 1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        if version >= since:
            rights |= right
    return rights


def restrict(read, write):
    """Allow reading below the paths `read`, everything below `write`, no more. Call it before any thread starts."""
    version = abi()
    if not version:
        raise OSError("this kernel has no Landlock")
    handled = _rights(version)
    attributes = struct.pack("QQQ", handled, TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call(CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for paths, rights in ((read, READ), (write, handled)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        if ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError("new privileges cannot be ruled out")
        _call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset, path, rights):
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, place)
        _call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)
