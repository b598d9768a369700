#!/usr/bin/env bash
# Build dist/cpudist-*.whl for each Python, with the ccl backend compiled for each torch, and dist/cpudist-*.tar.gz:
#   scripts/wheels.sh [torch's version]...     the four of TORCHES by default
#   PYTHONS="python3.11 python3.13" scripts/wheels.sh
#   ONECCL=no scripts/wheels.sh     without oneCCL and its licence: 1.2 MB for each torch
# The wheels run on manylinux_2_28, wherever they are built (scripts/manylinux). Checked here: two builds have the same
# bytes, none is too large, auditwheel finds no newer symbol, and a two-rank job runs in an empty environment without a
# compiler. scripts/old_roots.sh runs it in an old system. build/cpudist.cdx.json lists what that environment has, and what
# is linked into the wheels.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

readonly TORCHES=(2.8.0 2.13.0 2.14.1 2.15.0)
readonly OLDEST=2.8.0 # for Python 3.11 alone, as in the tests
readonly ONECCL=${ONECCL:-yes}
if [ "$ONECCL" = no ]; then MOST_BYTES=$((5 << 20)) BUILD_EXTRA=mpi; else MOST_BYTES=$((40 << 20)) BUILD_EXTRA=build; fi
PLATFORM=manylinux_2_28_$(uname -m)
IFS=' ' read -ra pythons <<<"${PYTHONS:-python3.11 python3.12 python3.13 python3.14}"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH # of the files in the archives

export_sources() {
    mkdir -p "$1"
    git archive HEAD | tar -x -C "$1"
}

tag_of() { "$1" -c 'import sys; print("cp%d%d" % sys.version_info[:2])'; }

# Compiles the modules for one torch into the sources of both builds, in an environment that is removed again: a torch from
# PyPI brings 7 GB.
compile_modules() {
    local torch=$1 build of=("${pythons[@]}")
    if [ "$torch" = "$OLDEST" ]; then of=("${pythons[0]}"); fi
    say "torch $torch"
    "${pythons[0]}" -m venv "$scratch/torch"
    timeout 1800 "$scratch/torch/bin/pip" install --quiet "torch==$torch" "$scratch/installed[$BUILD_EXTRA]"
    for build in one two; do
        PATH=$scratch/torch/bin:$PATH CXX=$scratch/toolchain/g++ PYTHONPATH=$scratch/$build/${tags[0]} timeout 7200 \
            python scripts/manylinux/compile_modules.py "$scratch/$build" "${of[@]}" &
    done
    wait -n
    wait -n
    "$scratch/torch/bin/pip" freeze | { grep ^oneccl-cpu-devel= || true; } >"$scratch/linked.txt"
    if [ "$ONECCL" != no ]; then
        # oneCCL is linked statically, so its licence comes along, with those of what it contains.
        cp "$scratch"/torch/lib/python*/site-packages/oneccl_cpu_devel-*.dist-info/LICENSE.txt "$scratch/LICENSE.oneCCL.txt"
        cp "$scratch/torch/share/doc/ccl/licensing/third-party-programs.txt" "$scratch/LICENSE.oneCCL-third-party.txt"
    fi
    rm -rf "$scratch/torch"
}

build_wheel() {
    local folder=$1 tag=$2
    if [ "$ONECCL" != no ]; then
        cp "$scratch"/LICENSE.oneCCL*.txt "$folder"
        sed -i 's/^license = "Apache-2.0"/license = "Apache-2.0 AND LicenseRef-Intel-Simplified-Software-License"/' "$folder/pyproject.toml"
    fi
    timeout 600 "$tools/bin/pip" wheel --quiet --no-deps -w "$folder/dist" "$folder"
    timeout 60 "$tools/bin/wheel" tags --remove --python-tag "$tag" --abi-tag "$tag" --platform-tag "$PLATFORM" "$folder"/dist/*.whl
}

# Dies if auditwheel finds symbols that are newer than the platform's, in the wheel or in the libraries of torch, hwloc and
# OpenMP that packages bring.
check_wheel() {
    local bytes environment=$scratch/venv
    bytes=$(stat -c %s "$1")
    [ "$bytes" -le "$MOST_BYTES" ] || die "$1 has $bytes bytes, more than $MOST_BYTES"
    timeout 120 "$tools/bin/auditwheel" show \
        --ldpaths "$environment/lib:$(echo "$environment"/lib/python*/site-packages/torch/lib)" "$1" >"$scratch/policy"
    tr '\n' ' ' <"$scratch/policy" | grep -q "constrains the platform tag to \"manylinux_2_\(1[0-9]\|2[0-8]\)_" ||
        die "$1 has newer symbols than $PLATFORM: $(cat "$scratch/policy")"
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

# Runs a job with the packages of one extra: [mpi] has none of oneCCL's libraries, so MPI carries its messages.
try_extra() {
    local extra=$1 wheel=$2 folder=$3
    say "an empty environment, without a compiler: $(basename "$wheel")[$extra]"
    timeout 1200 "$folder/venv/bin/pip" install --quiet "torch==$tried" "${wheel}[$extra]"
    (cd "$folder" && env -i HOME="$folder/home" PATH="$folder/venv/bin:$folder/bin" \
        timeout 120 mpirun -n 2 cpudist-train --backend ccl script.py)
    [ ! -e "$folder/home/.cache/cpudist" ] || die "the backend was compiled again"
}

try_wheel() {
    local wheel=$1 folder=$2
    "${pythons[0]}" -m venv "$folder/venv"
    printf 'import torch, torch.distributed as dist\nx = torch.ones(4)\ndist.all_reduce(x)\nprint(dist.get_backend(), x)\n' \
        >"$folder/script.py"
    mkdir "$folder/home"
    programs_without_compilers "$folder/bin"
    try_extra mpi "$wheel" "$folder"
    if [ "$ONECCL" != no ]; then try_extra ccl "$wheel" "$folder"; fi
}

need "a C++ compiler" g++ command -v g++
[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed; a wheel is made of the last commit"
[ $# -gt 0 ] || set -- "${TORCHES[@]}"
tried=2.13.0
case " $* " in *" $tried "*) ;; *) tried=$1 ;; esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tools=$scratch/tools
"${pythons[0]}" -m venv "$tools"
timeout 300 "$tools/bin/pip" install --quiet 'auditwheel>=6,<7' 'wheel>=0.45,<1' 'build>=1,<2' 'cyclonedx-bom>=7,<8'
"$tools/bin/python" scripts/manylinux/old_symbols.py "$scratch/toolchain"

export_sources "$scratch/installed" # pip leaves files in it
tags=()
for python in "${pythons[@]}"; do
    tags+=("$(tag_of "$python")")
    for build in one two; do export_sources "$scratch/$build/${tags[-1]}"; done
done
for torch in "$@"; do compile_modules "$torch"; done
mkdir "$scratch/dist"
for tag in "${tags[@]}"; do
    say "two wheels for $tag, which must be the same"
    for build in one two; do build_wheel "$scratch/$build/$tag" "$tag"; done
    cmp "$scratch/one/$tag"/dist/*.whl "$scratch/two/$tag"/dist/*.whl || die "two builds of one commit differ"
    cp "$scratch/one/$tag"/dist/*.whl "$scratch/dist"
done
try_wheel "$scratch"/dist/*-"${tags[0]}"-*.whl "$scratch"
for wheel in "$scratch"/dist/*.whl; do check_wheel "$wheel"; done

mkdir -p build
if [ -s "$scratch/linked.txt" ]; then
    timeout 300 "$scratch/venv/bin/pip" install --quiet --no-deps -r "$scratch/linked.txt"
fi
timeout 120 "$tools/bin/cyclonedx-py" environment --output-reproducible --output-file build/cpudist.cdx.json "$scratch/venv/bin/python"

export_sources "$scratch/source"
timeout 600 "$tools/bin/python" -m build --quiet --sdist --outdir "$scratch/dist" "$scratch/source" >/dev/null
timeout 300 "$scratch/venv/bin/pip" install --quiet --no-deps --force-reinstall "$scratch"/dist/*.tar.gz
mkdir -p dist
cp "$scratch"/dist/* dist/
say "built"
ls -l dist/
sha256sum dist/*
