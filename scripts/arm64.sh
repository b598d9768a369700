#!/usr/bin/env bash
# Cross-compile for aarch64, make a wheel (build/arm64/dist) and run it under qemu, by hand:
#   scripts/arm64.sh [torch's version]      2.10.0 by default, the last whose package on PyPI is for CPUs on aarch64
# Ten minutes on two cores, 1.6 GB in build/arm64. It runs what lies below transport.hpp
# alone, then a training of two and four ranks by gloo, shared memory and MPI, whose losses must agree. qemu keeps the
# memory order of the machine that it runs on, so on x86-64 nothing here shows that of Arm. The speed is qemu's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

readonly TORCH=${1:-2.10.0}
readonly FOLDER=$PWD/build/arm64 PYTHON=python3.11
export CROSS=aarch64-linux-gnu-
# Without three, of which qemu has not what they need: limits of memory, and madvise's MADV_DONTFORK.
readonly SCENARIOS=(late disagreement counts gone left stranger eager crowd requests)
readonly PACKAGES=("torch==$TORCH" 'numpy<3' 'mpi4py>=4.1,<5' 'psutil>=7.2,<8' 'msgspec<1' packaging rich
    markdown-it-py mdurl pygments filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec)

# Prints the options by which apt sees packages of aarch64 alone, none of which is installed.
for_arm() {
    printf ' -o %s' APT::Architecture=arm64 APT::Architectures=arm64 Dir::State="$FOLDER/apt/state" \
        Dir::State::status="$FOLDER/apt/status" Dir::Cache="$FOLDER/apt/cache"
}

make_root() {
    local package
    mkdir -p "$FOLDER"/apt/{state/lists/partial,cache/archives/partial} "$FOLDER/root/headers"
    touch "$FOLDER/apt/status"
    # shellcheck disable=SC2046
    timeout 600 apt-get -qq $(for_arm) update
    # shellcheck disable=SC2046
    timeout 600 apt-get -qq -y $(for_arm) --no-install-recommends --download-only install \
        "$PYTHON-minimal" "lib$PYTHON-stdlib" "lib$PYTHON-dev" libgomp1 libstdc++6
    for package in "$FOLDER"/apt/cache/archives/*.deb; do dpkg -x "$package" "$FOLDER/root"; done
    ln -sfn ../usr/include/aarch64-linux-gnu "$FOLDER/root/headers/aarch64-linux-gnu" # of Python's pyconfig.h
}

# pip takes the markers of this machine, so the packages that torch needs are named, without its GPU's.
fetch() {
    timeout 1200 "$FOLDER/tools/bin/pip" install --quiet --upgrade --no-deps --only-binary :all: --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
        --platform manylinux2014_aarch64 --platform any "$@"
}

# Starts Python for aarch64, as the ranks do, and the store that one of them starts.
write_python() {
    local libraries=$FOLDER/mpich/lib
    cat >"$FOLDER/python" <<END
#!/bin/sh
exec qemu-aarch64 -L "$FOLDER/root" -E LD_LIBRARY_PATH="$libraries:$libraries/mpich" "$FOLDER/root/usr/bin/$PYTHON" "\$@"
END
    chmod +x "$FOLDER/python"
    # qemu does not have the call by which psutil asks for the speed of a network.
    cat >"$FOLDER/train.py" <<END
import sys

import psutil

sys.executable = "$FOLDER/python"
psutil._psplatform.cext.net_if_duplex_speed = lambda name: (0, 0)
import torch

import cpudist

world = cpudist.init(sys.argv[1])
torch.manual_seed(0)
model = cpudist.wrap(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
draws = torch.Generator().manual_seed(world.rank)
for _ in range(20):
    inputs = torch.randn(32, 64, generator=draws)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True).sin())
    loss.backward()
    cpudist.step(optimizer)
loss = cpudist.mean(loss.detach())
if world.rank == 0:
    print(f"{world.size} ranks, loss {loss:.5f}")
cpudist.shutdown()
END
}

below_transport() {
    local tests=tests/backends/ccl/shared_memory sources=cpudist/backends/ccl/csrc name
    for name in kernels layout stress scenarios; do
        "${CROSS}g++" -std=c++20 -O2 -static -pthread -I"$sources" -o "$FOLDER/$name" "$tests/$name.cpp" \
            "$sources/shared_memory/unity.cpp" "$sources/rendezvous.cpp" "$tests/threads.cpp"
    done
    for name in kernels layout; do timeout 300 qemu-aarch64 "$FOLDER/$name"; done
    timeout 300 qemu-aarch64 "$FOLDER/stress" processes 2 100 1 1
    timeout 300 qemu-aarch64 "$FOLDER/stress" processes 4 60 2 1
    timeout 300 qemu-aarch64 "$FOLDER/stress" processes 2 60 3 2
    for name in "${SCENARIOS[@]}"; do timeout 120 qemu-aarch64 "$FOLDER/scenarios" "$name"; done
}

make_wheel() {
    local source=$FOLDER/source torch=$FOLDER/site/torch module kernel
    local -a options=(-O2 -std=c++20 -fPIC -shared -fvisibility=hidden -fopenmp -D_GLIBCXX_USE_CXX11_ABI=1
        -isystem"$FOLDER/root/usr/include/$PYTHON" -isystem"$FOLDER/root/headers" -isystem"$torch/include"
        -isystem"$torch/include/torch/csrc/api/include" -L"$torch/lib" -lc10 -ltorch_cpu)
    rm -rf "$source" "$FOLDER/toolchain" "$FOLDER/dist"
    mkdir -p "$source"
    git archive HEAD | tar -x -C "$source"
    "$FOLDER/tools/bin/python" scripts/manylinux/old_symbols.py "$FOLDER/toolchain"
    module=$source/cpudist/backends/ccl/prebuilt/torch$TORCH-cp311/cpudist_mpi.so
    kernel=$source/cpudist/optimization/prebuilt/torch$TORCH/cpudist_operators.so
    mkdir -p "$(dirname "$module")" "$(dirname "$kernel")"
    "$FOLDER/toolchain/g++" -o "$module" "$source/cpudist/backends/ccl/csrc/unity.cpp" "${options[@]}" -ltorch_python
    "$FOLDER/toolchain/g++" -o "$kernel" "$source/cpudist/optimization/csrc/unity.cpp" "${options[@]}"
    timeout 600 "$FOLDER/tools/bin/pip" wheel --quiet --no-deps -w "$FOLDER/dist" "$source"
    timeout 60 "$FOLDER/tools/bin/wheel" tags --remove --python-tag cp311 --abi-tag cp311 --platform-tag manylinux_2_28_aarch64 \
        "$FOLDER"/dist/*.whl
    timeout 120 "$FOLDER/tools/bin/auditwheel" show --ldpaths "$torch/lib:$FOLDER/root/usr/lib/aarch64-linux-gnu" "$FOLDER"/dist/*.whl
    ls -l "$FOLDER/dist"
}

# train RANKS BACKEND: prints the loss, which comes after gloo's own lines.
train() {
    timeout 600 "$FOLDER/tools/bin/mpiexec" -n "$1" "$FOLDER/python" "$FOLDER/train.py" "$2" 2>"$FOLDER/train.log" | tail -n 1 ||
        die "see $FOLDER/train.log"
}

need "qemu" qemu-user command -v qemu-aarch64
need "a C++ compiler for aarch64" g++-aarch64-linux-gnu command -v "${CROSS}g++"
need "$PYTHON" python3 command -v "$PYTHON"
[ -z "$(git status --porcelain cpudist)" ] || die "there are changes that are not committed; a wheel is made of the last commit"
mkdir -p "$FOLDER"
say "below transport.hpp, under qemu"
below_transport
say "packages for aarch64"
[ -x "$FOLDER/tools/bin/pip" ] || "$PYTHON" -m venv "$FOLDER/tools"
timeout 300 "$FOLDER/tools/bin/pip" install --quiet 'auditwheel>=6,<7' 'wheel>=0.45,<1' 'setuptools>=77' 'mpich>=5,<6'
make_root
fetch --target "$FOLDER/site" "${PACKAGES[@]}"
rm -rf "$FOLDER/wheels" "$FOLDER/mpich"
timeout 300 "$FOLDER/tools/bin/pip" download --quiet --no-deps --only-binary :all: --platform manylinux_2_28_aarch64 \
    --dest "$FOLDER/wheels" 'mpich>=5,<6'
"$PYTHON" -m zipfile -e "$FOLDER"/wheels/mpich-*.whl "$FOLDER/wheels"
mv "$FOLDER"/wheels/mpich-*.data/data "$FOLDER/mpich"
say "a wheel for aarch64, torch $TORCH"
make_wheel
rm -rf "$FOLDER"/site/cpudist*
"$FOLDER/tools/bin/pip" install --quiet --no-deps --target "$FOLDER/site" --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_aarch64 "$FOLDER"/dist/*.whl
write_python
export PYTHONPATH=$FOLDER/site MPI4PY_LIBMPI=$FOLDER/mpich/lib/libmpi.so.12 OMP_NUM_THREADS=1 CXX=none
export MPIR_CVAR_CH4_CMA_ENABLE=0 # qemu does not have process_vm_readv
for ranks in 2 4; do
    say "$ranks ranks under qemu: gloo, shared memory, MPI"
    by_gloo=$(train "$ranks" gloo)
    for transport in mpi mpi-alone; do
        by_ccl=$(CPUDIST_TRANSPORT=$transport train "$ranks" ccl)
        printf '%s: %s, gloo: %s\n' "$transport" "$by_ccl" "$by_gloo"
        [ "$by_ccl" = "$by_gloo" ] || die "the losses differ"
    done
done
