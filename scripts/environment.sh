# Sourced by quickstart.sh and test.sh: makes environments in the checkout.
# shellcheck shell=bash

# An environment is a folder and the versions in it that do not follow from pyproject.toml. PyPI's torch is a CUDA build of
# several GB; where pip is configured for PyTorch's index of CPU builds, the first environment gets 2.13.0+cpu.
# shellcheck disable=SC2034  # used by the scripts that source this one
readonly NEWEST=(.venv torch==2.13.0)
# The oldest versions, and what exists for torch 2.8 but no longer for the newest, or changes what other packages do.
# shellcheck disable=SC2034
readonly TORCH_2_8=(.venv-torch2.8 torch==2.8.0 transformers==4.57.6 datasets==4.4.1
    intel_extension_for_pytorch==2.8.0 torch_xla==2.8.1)
# The last release of torch that torch_xla was made for.
# shellcheck disable=SC2034
readonly TORCH_2_9=(.venv-torch2.9 torch==2.9.0 torch_xla==2.9.0)
# The newest torch of all.
# shellcheck disable=SC2034
readonly TORCH_2_15=(.venv-torch2.15 torch==2.15.0)

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
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "Python 3.11 or newer is needed, this is $(python3 -V 2>&1)"
    need "a C++ compiler" g++ command -v "${CXX:-g++}"
    need "Python's C headers" python3-dev has_headers
    need "Python's venv" python3-venv python3 -c 'import ensurepip'
}

# make_environment EXTRAS FOLDER PIN...: installs cpudist[EXTRAS] and these versions into FOLDER, unless that has been done
# for this pyproject.toml, and puts FOLDER first on PATH, where Intel MPI's mpirun looks for its own helpers. Without
# --foreground, timeout would keep Ctrl-C from pip.
make_environment() {
    local extras=$1 folder=$PWD/$2 pins=("${@:3}")
    local python=$folder/bin/python marker=$folder/.installed-$extras wanted
    wanted="${pins[*]} $(sha256sum pyproject.toml)"
    if [ "$(cat "$marker" 2>/dev/null)" != "$wanted" ]; then
        say "environment: installing cpudist[$extras] with ${pins[*]} into $folder (a few minutes)"
        [ -x "$python" ] || python3 -m venv "$folder"
        timeout --foreground 1200 "$python" -m pip install --quiet --disable-pip-version-check "${pins[@]}" -e ".[$extras]"
        printf '%s' "$wanted" >"$marker"
    fi
    export PATH="$folder/bin:$PATH"
}

build_backend() {
    say "backend: compiling ccl, unless that has been done (a minute or two)"
    timeout --foreground 900 cpudist build
}
