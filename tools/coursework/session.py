"""A submission at work in a confined process of its own, seen from the grader."""

import ctypes
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools import sources
from tools.coursework import landlock, wire

RUNNER = Path(__file__).with_name("runner.py")
KEPT_OUTPUT = 100_000
START_SECONDS = 180
LOOK_EVERY = 0.2  # seconds between looks at memory
CHILD_SUBREAPER, PARENT_DEATH_SIGNAL = 36, 1
# What Python and its libraries read besides themselves. No folder of students or tests may be among them.
SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/fonts", "/etc/localtime", "/etc/passwd",
    "/etc/nsswitch.conf", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu",
    "/sys/devices/system/node", "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What one submission may use: seconds in all, seconds for one cell or call, bytes of memory."""

    seconds: float = 600.0
    step: float = 200.0
    memory: int = 4 * 2**30


class Ended(Exception):
    """The submission's process is gone; the text says why."""


class AnswerError(AssertionError):
    """An answer that cannot be had: a missing name, a call that raised. The text is for the student."""


def readable():
    """The folders that a submission may read: Python, the installed packages, the library."""
    paths = sysconfig.get_paths()
    own = {sys.prefix, sys.base_prefix, paths["purelib"], paths["platlib"], str(sources.LIBRARY.parent)}
    return sorted({os.path.realpath(path) for path in own} | own) + list(SYSTEM)


def become_grader():
    """Make this process the parent of whatever its submissions leave behind, and let it end with the one above it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


class Session:
    """One confined process that runs a submission in `folder`. Use as a context manager."""

    def __init__(self, folder, limits=None, confined=True):
        self.folder, self.limits = Path(folder), limits or Limits()
        self.deadline = math.inf
        self.output, self.fate = bytearray(), None
        ours, theirs = socket.socketpair()
        self.connection = ours
        settings = {
            "socket": theirs.fileno(),
            "read": readable(),
            "write": [str(folder), "/dev/null"],
            "memory": self.limits.memory,
            "confined": confined,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-W", "ignore", str(RUNNER), json.dumps(settings)],
            cwd=folder,
            env=self._environment(folder),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        theirs.close()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._drain, self._watch)]
        for thread in self.threads:
            thread.start()
        self._wait_until_ready()

    def _wait_until_ready(self):
        """The clock starts when the libraries are loaded."""
        self.connection.settimeout(START_SECONDS)
        try:
            wire.receive(self.connection)
        except (EOFError, OSError, wire.WireError) as error:
            self.end("it could not be started")
            raise RuntimeError(f"The process for a submission did not start:\n{self.printed()}") from error
        self.connection.settimeout(None)
        self.deadline = time.monotonic() + self.limits.seconds

    def _environment(self, folder):
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
        )
        return {
            **threads,
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "IPYTHONDIR": str(Path(folder, ".ipython")),
            "MPLCONFIGDIR": str(Path(folder, ".matplotlib")),
            "NUMBA_CACHE_DIR": str(Path(folder, ".numba")),
            "MPLBACKEND": "agg",
            "LOWDIM_PROGRESS": "0",
        }

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.end("the grading is over")
        self.connection.close()

    def _drain(self):
        """Read all that the submission prints, and keep the beginning."""
        while part := self.process.stdout.read1(2**16):
            self.output += part[: max(0, KEPT_OUTPUT - len(self.output))]
        self.process.stdout.close()

    def _watch(self):
        """End the submission when its time is over or its processes together take too much memory."""
        while self.process.poll() is None:
            if time.monotonic() > self.deadline:
                self.end(f"it took longer than the {self.limits.seconds:.0f} s that a submission has")
            elif self._memory() > self.limits.memory * 1.2:
                self.end(f"it used more than {self.limits.memory / 2**30:.1f} GB of memory")
            time.sleep(LOOK_EVERY)

    def _memory(self):
        total = 0
        for process in self._family():
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total

    def _family(self):
        """The submission's processes: the runner, what it started, and what they left to us."""
        family = {}
        for process in psutil.Process().children(recursive=True):
            try:
                if process.pid == self.process.pid or self._belongs(process):
                    family[process.pid] = process
            except psutil.Error:
                continue
        return list(family.values())

    def _belongs(self, process):
        return any(parent.pid == self.process.pid for parent in process.parents()) or self._is_orphan(process)

    def _is_orphan(self, process):
        """A grandchild that came to us when its parent ended: it still carries the runner's folder as its home."""
        return process.ppid() == os.getpid() and process.environ().get("HOME") == str(self.folder)

    def end(self, reason):
        """End every process of the submission; the first reason is kept."""
        if self.fate is None:
            self.fate = reason
        for process in self._family():
            try:
                process.kill()
            except psutil.Error:
                continue
        self.process.kill()
        self.process.wait()

    # ------------------------------------------------------------------------------------------------ conversation

    def _ask(self, functions=(), **request):
        """Send a request and return the reply; calls of `functions` on the way are answered."""
        try:
            wire.send(self.connection, request)
            while True:
                reply = wire.receive(self.connection)
                if "callback" not in reply:
                    return reply
                wire.send(self.connection, self._answer(functions, reply))
        except (EOFError, OSError, wire.WireError) as error:
            if isinstance(error, wire.WireError):
                self.end("it wrote into the grader's own connection")
            raise Ended(self._why()) from error

    def _answer(self, functions, call):
        try:
            function = functions[int(call["callback"])]
            return {"value": wire.encode(function(*wire.decode(call["arguments"])))}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _why(self):
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.end("it closed its connection to the grader")
            status = None
        if self.fate is None:
            self.fate = (
                f"Python was ended from inside, with status {status} (os._exit, or a crash)"
                if status is not None and status >= 0
                else f"Python was ended by signal {-(status or 0)} (often: too much memory)"
            )
        return self.fate

    def run_cell(self, source):
        """Execute a cell; return None, or what went wrong in one line."""
        return self._ask(do="cell", source=source, seconds=self.limits.step).get("error")

    def get(self, name, default=None):
        """The answer `name`: plain data, a callable that calls the submission's function, or `default`."""
        reply = self._ask(do="get", name=name)
        if reply.get("kind") == "missing":
            return default
        if reply.get("kind") == "function":
            return self._function(name)
        if reply.get("kind") == "value":
            return wire.decode(reply["value"])
        raise AnswerError(
            f"{name} is {reply.get('error', 'unreadable')}; the question asks for numbers, arrays or a function"
        )

    def _function(self, name):
        def function(*arguments, **options):
            functions = []
            reply = self._ask(
                functions,
                do="call",
                name=name,
                arguments=wire.encode(arguments, functions),
                options=wire.encode(options, functions),
                seconds=self.limits.step,
            )
            if "error" in reply:
                raise AnswerError(f"{name}(…) failed: {reply['error']}")
            return wire.decode(reply.get("value"))

        function.__name__ = name
        return function

    def printed(self):
        """The beginning of what the submission printed."""
        text = self.output.decode("utf8", "replace")
        return (
            text
            if len(self.output) < KEPT_OUTPUT
            else f"{text}\n… (cut: it printed more than {KEPT_OUTPUT // 1000} kB)"
        )


def new_folder(parent):
    """A folder of its own for one submission, with the compiled kernels of the library already in it."""
    folder = Path(parent)
    folder.mkdir(parents=True)
    warm = sources.BUILD / "coursework" / "numba"
    if warm.exists():
        shutil.copytree(warm, folder / ".numba")
    return folder.resolve()


def protection():
    """What confines a submission on this machine, as (whether anything does, a sentence)."""
    version = landlock.abi()
    if not version:
        return False, "This machine has no Landlock (Linux 5.13 or newer): submissions could read and write your files."
    gaps = [what for since, what in ((4, "TCP connections"), (6, "signals to other processes")) if version < since]
    rest = f"; not held back by this kernel: {' and '.join(gaps)}" if gaps else ""
    return True, f"Submissions are confined to their own folder by Landlock (version {version}){rest}."


def warm_up():
    """Compile the library's kernels once, so that no submission waits for it: each gets a copy of the compiled code."""
    warm = sources.BUILD / "coursework" / "numba"
    stamp = warm / sources.library_hash()
    if stamp.exists():
        return
    shutil.rmtree(warm, ignore_errors=True)
    warm.mkdir(parents=True)
    code = "from lowdim import exact; exact.online_sgd('h3', 16, 100, 0.01, runs=2, seed=0)"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(warm), "LOWDIM_PROGRESS": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=warm)
    stamp.touch()
