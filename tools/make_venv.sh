#!/bin/sh
# Create or update the virtual environment that the Makefile uses: sh tools/make_venv.sh FOLDER
set -eu
venv=$1

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for candidate in ${LOWDIM_PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "This book needs Python 3.11 or newer, and none was found (python3 is $(python3 --version 2>&1))." >&2
    echo "Install one, or name it: LOWDIM_PYTHON=path/to/python3 make book" >&2
    exit 1
}

# Debian and Ubuntu ship Python without ensurepip; its package is small, so root gets it without being asked.
ensure_ensurepip() {
    "$1" -c 'import ensurepip' 2>/dev/null && return
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $package, without which Python cannot create a virtual environment"
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "$package" >/dev/null && return
    fi
    echo "This Python cannot create a virtual environment. On Debian or Ubuntu: sudo apt install $package" >&2
    exit 1
}

if ! is_new_enough "$venv/bin/python"; then
    python=$(find_python)
    ensure_ensurepip "$python"
    echo "Creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi
echo "Installing the pinned packages into $venv (a few minutes the first time)"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -r requirements.txt
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -e .
