"""Runs one submission, confined: the other end of `session.Session`, never started by hand.

    python -I runner.py '{"socket": 3, "read": [...], "write": [...], "memory": bytes}'

It gives up access to everything but the libraries and its own folder, then executes cells and calls functions as it is
told. No test is ever here: the grader sends arguments and judges what comes back.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import landlock
import wire

MOST_FILE_BYTES = 200 * 2**20
PARENT_DEATH_SIGNAL = 1
PRELOADED = ("matplotlib.pyplot", "torch", "lowdim.exact")


class TimeIsUp(BaseException):
    """Raised in a cell or call that has used its time; not an Exception, so that it is not swallowed by accident."""


class Checks:
    """What `grader` is while a submission is graded: the grader checks by itself, so that calls here do nothing."""

    def check(self, question):
        print(f"{question} is checked by the grader")

    def check_all(self):
        print("all questions are checked by the grader")

    def export(self, *arguments, **options):
        print("nothing is exported while a submission is graded")


def confine(settings):
    """Give up what a submission does not need, and end with the grader."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    for limit, value in (
        (resource.RLIMIT_DATA, settings["memory"]),
        (resource.RLIMIT_FSIZE, MOST_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    if settings["confined"]:
        landlock.restrict([*settings["read"], f"/proc/{os.getpid()}"], settings["write"])


def with_limit(seconds, action):
    """The result of `action()`, or TimeIsUp after so many seconds."""

    def ring(number, frame):
        raise TimeIsUp

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return action()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def described(error):
    """One line that says what went wrong, in the student's terms."""
    if isinstance(error, TimeIsUp):
        return "it did not finish in its time"
    text = str(error).strip().splitlines()
    if isinstance(error, PermissionError):
        text = [f"{text[0] if text else ''} (while it is graded, a submission may use its own folder only)"]
    return f"{type(error).__name__}: {text[0][:500]}" if text else type(error).__name__


class Runner:
    def __init__(self, connection):
        from IPython.core.interactiveshell import InteractiveShell

        for name in PRELOADED:  # every set uses them; they shall not count as a cell's own time
            importlib.import_module(name)
        self.connection = connection
        self.shell = InteractiveShell.instance(colors="NoColor", history_length=0)
        self.shell.history_manager.enabled = False
        self.names = self.shell.user_ns
        self.names["grader"] = Checks()

    def serve(self):
        wire.send(self.connection, {"ready": True})
        while True:
            try:
                request = wire.receive(self.connection)
            except EOFError:
                return
            try:
                reply = getattr(self, f"do_{request['do']}")(request)
            except (Exception, TimeIsUp, SystemExit, KeyboardInterrupt) as error:
                reply = {"error": described(error)}
            try:
                wire.send(self.connection, reply)
            except wire.WireError as error:
                wire.send(self.connection, {"error": f"it is {error}"})

    def do_cell(self, request):
        outcome = with_limit(request["seconds"], lambda: self.shell.run_cell(request["source"], store_history=False))
        error = outcome.error_before_exec or outcome.error_in_exec
        return {"error": described(error)} if error is not None else {"value": None}

    def do_get(self, request):
        if request["name"] not in self.names:
            return {"kind": "missing"}
        value = self.names[request["name"]]
        if callable(value) and not hasattr(value, "detach"):
            return {"kind": "function"}
        if value is Ellipsis:
            return {"kind": "missing"}
        try:
            return {"kind": "value", "value": wire.encode(value)}
        except wire.WireError as error:
            return {"kind": "unreadable", "error": str(error)}

    def do_call(self, request):
        def remote(number):
            def function(*arguments):
                wire.send(self.connection, {"callback": number, "arguments": wire.encode(arguments)})
                answer = wire.receive(self.connection)
                if "error" in answer:
                    raise ValueError(answer["error"])
                return wire.decode(answer["value"])

            return function

        arguments = wire.decode(request["arguments"], remote)
        options = wire.decode(request["options"], remote)
        function = self.names[request["name"]]
        result = with_limit(request["seconds"], lambda: function(*arguments, **options))
        try:
            return {"value": wire.encode(result)}
        except wire.WireError as error:
            raise TypeError(f"{request['name']} returned {error}") from error


def main():
    settings = json.loads(sys.argv[1])
    connection = socket.socket(fileno=settings["socket"])
    del sys.path[0]
    confine(settings)
    sys.argv = ["submission"]
    Runner(connection).serve()


if __name__ == "__main__":
    main()
