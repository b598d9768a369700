# Sourced by quickstart.sh and test.sh: makes the environment .venv in the checkout.
#
# torch is pinned before anything else is installed: a range would drag several GB of CUDA packages in.
TORCH_VERSION=2.13.0

die() {
    echo "$(basename "$0"): $*" >&2
    exit 2
}

# The newest Python that is new enough, as a command.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.10 or newer is needed; install it: apt-get install python3 python3-venv"
}

# make_environment EXTRAS: creates or updates .venv; does nothing when pyproject.toml is as it was.
make_environment() {
    local extras=$1 stamp=.venv/.installed wanted python
    command -v "${CXX:-g++}" >/dev/null || die "a C++ compiler is needed; install it: apt-get install g++"
    wanted="$TORCH_VERSION $extras $(sha256sum pyproject.toml | cut -d' ' -f1) $PWD"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python cannot make virtual environments; install the package: apt-get install python3-venv"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    echo "installing torch $TORCH_VERSION and cpudist[$extras] into .venv (a few minutes the first time)" >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$TORCH_VERSION" ||
        die "pip could not install torch==$TORCH_VERSION; its message is above"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]" "torch==$TORCH_VERSION" ||
        die "pip could not install cpudist; its message is above"
    echo "$wanted" >"$stamp"
}
