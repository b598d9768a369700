# Sourced by quickstart.sh and test.sh: makes the environment .venv in the checkout.
# shellcheck shell=bash

# Pinned before anything else is installed: with torch unpinned, pip would fetch several GB of CUDA packages.
readonly TORCH=2.13.0
readonly VENV="$PWD/.venv"

say() { printf '\n== %s\n' "$*"; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}

# need WHAT PACKAGE COMMAND...: where the command fails, installs the Debian package if it may, or says to.
need() {
    local what=$1 package=$2
    shift 2
    if "$@" >/dev/null 2>&1; then return; fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "$what: installing the package $package"
        { apt-get update -qq && apt-get install -y -qq "$package"; } >/dev/null ||
            die "$what is missing and apt-get could not install $package"
    else
        die "$what is missing; install it: sudo apt-get install $package"
    fi
}

has_headers() {
    python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

check_machine() {
    need "Python 3" python3 command -v python3
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "Python 3.10 or newer is needed, this is $(python3 -V 2>&1)"
    need "a C++ compiler" g++ command -v "${CXX:-g++}"
    need "Python's C headers" python3-dev has_headers
    [ -x "$VENV/bin/python" ] || need "Python's venv" python3-venv python3 -c 'import ensurepip'
}

# make_environment EXTRAS: installs cpudist[EXTRAS], unless that has been done for this pyproject.toml.
make_environment() {
    local marker="$VENV/.installed-$1" wanted
    wanted="torch $TORCH $(sha256sum pyproject.toml)"
    if [ "$(cat "$marker" 2>/dev/null)" != "$wanted" ]; then
        say "environment: installing torch $TORCH and cpudist[$1] into $VENV (a few minutes)"
        [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
        timeout 1200 "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$TORCH"
        timeout 1200 "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$1]"
        printf '%s' "$wanted" >"$marker"
    fi
    # Intel MPI's mpirun looks for its own helpers on PATH.
    export PATH="$VENV/bin:$PATH"
}

build_backend() {
    say "backend: compiling ccl, unless that has been done (half a minute)"
    timeout 900 cpudist build
}
