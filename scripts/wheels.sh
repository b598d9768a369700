#!/usr/bin/env bash
# Build dist/cpudist-*.whl with the ccl backend compiled for each torch that was run, and dist/cpudist-*.tar.gz:
#   scripts/wheels.sh [newest] [torch2.8] [torch2.15]     for which torch; all three by default
# Then check the wheel: two builds have the same bytes, it is not too large, its libraries are those that it needs, and a
# two-rank job runs in an empty environment without a compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

readonly MOST_BYTES=$((40 << 20))
readonly PREBUILT=cpudist/backends/ccl/prebuilt
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH # of the files in the archives

export_sources() {
    mkdir "$1"
    git archive HEAD | tar -x -C "$1"
}

# Puts the sources of the last commit, and a module for each environment, into a folder, and makes a wheel of it.
build_wheel() {
    local folder=$1 environment
    export_sources "$folder"
    for environment in "${environments[@]}"; do
        PATH=$PWD/$environment/bin:$PATH PYTHONPATH=$folder timeout 900 \
            python -c "import pathlib; from cpudist.backends.ccl import compilation; compilation.prebuild(pathlib.Path('$folder/$PREBUILT'))"
    done
    PATH=$PWD/${environments[0]}/bin:$PATH PYTHONPATH=$folder timeout 900 python -c "from cpudist import compiler; from cpudist.optimization import dropout; compiler.compile_for_wheel(dropout.library(), dropout.PREBUILT)"
    # oneCCL is linked statically, so its licence comes along, with those of what it contains.
    cp "${environments[0]}"/lib/python*/site-packages/oneccl_cpu_devel-*.dist-info/LICENSE.txt "$folder/LICENSE.oneCCL.txt"
    cp "${environments[0]}/share/doc/ccl/licensing/third-party-programs.txt" "$folder/LICENSE.oneCCL-third-party.txt"
    timeout 600 "$tools/bin/pip" wheel --quiet --no-deps -w "$folder/dist" "$folder"
    timeout 60 "$tools/bin/wheel" tags --remove --platform-tag "linux_$(uname -m)" "$folder"/dist/*.whl >/dev/null
}

# The oldest manylinux that has the symbols of the modules. torch and oneCCL's package bring the other libraries.
platform_of() {
    timeout 120 "$tools/bin/auditwheel" show "$1" | tr -d '\n' | sed -n 's/.*constrains the platform tag to "\([^"]*\)".*/\1/p'
}

# Links to all programs of the system but the compilers: a PATH on which there is none.
programs_without_compilers() {
    local compiler
    mkdir "$1"
    ln -s /usr/bin/* "$1"
    rm -f "$1"/*g++* "$1"/*gcc* "$1"/*clang* "$1/cc" "$1/c++"
    for compiler in g++ gcc cc c++ clang; do
        if PATH=$1 command -v "$compiler" >/dev/null; then die "there is still $compiler on the PATH of the test"; fi
    done
}

try_wheel() {
    local wheel=$1 folder=$2
    say "an empty environment, without a compiler: $(basename "$wheel")"
    python3 -m venv "$folder/venv"
    timeout 1200 "$folder/venv/bin/pip" install --quiet "torch==${NEWEST[1]#*==}" "$wheel[ccl]"
    printf 'import torch, torch.distributed as dist\nx = torch.ones(4)\ndist.all_reduce(x)\nprint(dist.get_backend(), x)\n' \
        >"$folder/script.py"
    mkdir "$folder/home"
    programs_without_compilers "$folder/bin"
    (cd "$folder" && env -i HOME="$folder/home" PATH="$folder/venv/bin:$folder/bin" \
        timeout 120 mpirun -n 2 cpudist-train --backend ccl script.py)
    [ ! -e "$folder/home/.cache/cpudist" ] || die "the backend was compiled again"
}

check_machine
[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed; a wheel is made of the last commit"
environments=()
[ $# -gt 0 ] || set -- newest torch2.8 torch2.15
for name in "$@"; do
    case $name in
        newest) pins=("${NEWEST[@]}") ;;
        torch2.8) pins=("${TORCH_2_8[@]}") ;;
        torch2.15) pins=("${TORCH_2_15[@]}") ;;
        *) die "there is no environment $name; choose newest, torch2.8 or torch2.15" ;;
    esac
    [ -x "${pins[0]}/bin/cpudist" ] || (make_environment ccl,plot,test "${pins[@]}")
    environments+=("${pins[0]}")
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tools=$scratch/tools
python3 -m venv "$tools"
timeout 300 "$tools/bin/pip" install --quiet 'auditwheel>=6,<7' 'wheel>=0.45,<1' 'build>=1,<2'

say "two builds, which must be the same"
build_wheel "$scratch/one"
build_wheel "$scratch/two"
built=("$scratch"/one/dist/*.whl)
cmp "${built[0]}" "$scratch"/two/dist/*.whl || die "two builds of one commit differ"
bytes=$(stat -c %s "${built[0]}")
[ "$bytes" -le "$MOST_BYTES" ] || die "the wheel has $bytes bytes, more than $MOST_BYTES"

platform=$(platform_of "${built[0]}")
[ -n "$platform" ] || die "auditwheel names no platform for the wheel"
timeout 60 "$tools/bin/wheel" tags --remove --platform-tag "$platform" "${built[0]}" >/dev/null
built=("$scratch"/one/dist/*.whl)
try_wheel "${built[0]}" "$scratch"

export_sources "$scratch/source"
timeout 600 "$tools/bin/python" -m build --quiet --sdist --outdir "$scratch/one/dist" "$scratch/source" >/dev/null
timeout 300 "$scratch/venv/bin/pip" install --quiet --no-deps --force-reinstall "$scratch"/one/dist/*.tar.gz
mkdir -p dist
cp "$scratch"/one/dist/* dist/
say "built"
ls -l dist/
sha256sum dist/*
