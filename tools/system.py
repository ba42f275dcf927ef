"""Installing packages of the operating system, where that needs no password."""

import os
import shutil
import subprocess


def elevation():
    """What to put before a command that only root may run: [] as root, ["sudo", "-n"], or None if there is no way."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def run_all(commands):
    """Run commands in turn; returns what the first failing one was and wrote, or None."""
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return f"{' '.join(command)} failed:\n{done.stdout}"
    return None


def apt_commands(*packages):
    """The commands that install Debian packages, or None where apt or the right to use it is missing."""
    prefix = elevation()
    if shutil.which("apt-get") is None or prefix is None:
        return None
    apt = [*prefix, "apt-get"]
    return [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *packages]]


def apt_install(*packages):
    """Install Debian packages if that is possible here; whoever needs them looks whether they came."""
    commands = apt_commands(*packages)
    if commands and (problem := run_all(commands)):
        print(problem)
