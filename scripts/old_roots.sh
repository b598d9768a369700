#!/usr/bin/env bash
# Run a wheel on two ranks of an old system without a compiler: a root folder of Debian 11, which has glibc 2.31.
#   scripts/old_roots.sh WHEEL [PACKAGE]...      as root; torch==2.13.0 by default; 15 minutes the first time
#   EXTRA=impi scripts/old_roots.sh WHEEL …      with Intel MPI instead of MPICH; EXTRA=mpi without oneCCL
# It is the oldest Debian that the mirrors have. Its Python is too old, so the wheel's is compiled there, in another root
# folder, from a newer Debian's source. All stays in build/roots but the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

readonly ROOTS=build/roots
readonly SUITE=bullseye EXTRA=${EXTRA:-ccl}
if [ "$EXTRA" = mpi ]; then
    WITHOUT_SHARED_MEMORY=mpi-alone UNDER_TORCHRUN=
else
    WITHOUT_SHARED_MEMORY=oneccl UNDER_TORCHRUN=oneccl
fi
declare -rA SOURCES=([3.11]=bookworm [3.13]=trixie [3.14]=sid) # of Python: the Debian that has it

in_root() { timeout --foreground 1800 unshare --mount --pid --fork --kill-child sh -c '
    mount -t proc proc "$0/proc"; mount -t tmpfs tmpfs "$0/dev/shm"; mount --rbind /sys "$0/sys"; exec chroot "$0" env -i PATH=/usr/bin:/bin HOME=/root "$@"' "$@"; }

make_root() {
    [ -e "$1" ] || { debootstrap --variant=minbase --include="$2" "$SUITE" "$1.new" >"$1.log" && mv "$1.new" "$1"; }
}

# Compiles Python in a root folder with a compiler: /opt/python3.X.
make_python() {
    local root=$ROOTS/builder suite=${SOURCES[$1]:-}
    [ -n "$suite" ] || die "no Debian has the source of Python $1"
    make_root "$root" gcc,libc6-dev,make,pkg-config,xz-utils,libffi-dev,libssl-dev,libsqlite3-dev,libbz2-dev,liblzma-dev,zlib1g-dev
    [ ! -e "$root/opt/python$1" ] || return 0
    say "Python $1 for Debian's $SUITE"
    cp /usr/share/keyrings/debian-archive-keyring.gpg "$root/usr/share/keyrings/newer.gpg"
    sed -n "1s|^deb \([^ ]*\) .*|deb-src [signed-by=/usr/share/keyrings/newer.gpg] \1 $suite main|p" "$root/etc/apt/sources.list" \
        >"$root/etc/apt/sources.list.d/python.list"
    in_root "$root" sh -ec '
        cd /root
        apt-get update -qq
        apt-get source -qq --download-only --tar-only "python$0"
        mkdir -p "python$0"
        tar -x --strip-components 1 -C "python$0" -f "python$0"_*.orig.tar.*
        cd "python$0"
        ./configure --prefix="/opt/python$0" --disable-test-modules
        make -j "$(nproc)"
        make install' "$1" >"$root.python$1.log" 2>&1 || die "see $root.python$1.log"
}

[ "$(id -u)" = 0 ] || die "run it as root, which may make root folders"
[ $# -gt 0 ] || die "give a wheel"
wheel=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- torch==2.13.0
python=$(basename "$wheel" | sed -n 's/.*-cp3\([0-9]*\)-.*/3.\1/p')
[ -n "$python" ] || die "$wheel is for no Python of its own"
need debootstrap debootstrap command -v debootstrap
need "Debian's keys" debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p "$ROOTS"
make_python "$python"
make_root "$ROOTS/$SUITE" libffi7,libssl1.1,libsqlite3-0
root=$ROOTS/trial
rm -rf "$root"
trap 'rm -rf "$root"' EXIT
cp -a "$ROOTS/$SUITE" "$root"
cp -a "$ROOTS/builder/opt/python$python" "$root/opt"
echo '127.0.0.1 localhost' >"$root/etc/hosts" # debootstrap writes none, and torchrun's ranks meet at this name
PYTHON=python$python scripts/wheelhouse.sh "$root/wheels" "$@" "${wheel}[$EXTRA]"
cat >"$root/root/script.py" <<'SCRIPT'
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

values = torch.full((3_000_001,), float(dist.get_rank() + 1))
dist.all_reduce(values)
assert set(values.tolist()) == {3.0}
model = DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
dist.barrier()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {dist.get_backend()}, torch {torch.__version__}")
SCRIPT
say "two ranks in Debian's $SUITE: $(basename "$wheel")"
in_root "$root" sh -ec '
    ldd --version | head -n 1
    for compiler in cc c++ gcc g++ clang; do if command -v $compiler; then exit 1; fi; done
    "/opt/python$0/bin/python$0" -m venv /opt/env
    export PATH=/opt/env/bin:$PATH
    pip install --quiet --disable-pip-version-check --no-index --find-links /wheels --require-hashes -r /wheels/requirements.txt
    cd /root
    timeout 120 mpirun -n 2 cpudist-train --backend ccl script.py
    # Every symbol is looked up, not only those that are called.
    LD_BIND_NOW=1 CPUDIST_TRANSPORT=$1 timeout 120 mpirun -n 2 cpudist-train --backend ccl script.py
    # oneCCL uses libfabric, which the package of MPI has brought.
    CPUDIST_TRANSPORT=$2 timeout 120 torchrun --local-addr 127.0.0.1 --nproc-per-node 2 --no-python cpudist-train --backend ccl script.py
    test ! -e /root/.cache/cpudist
    du -sh --exclude=torch /opt/env' "$python" "$WITHOUT_SHARED_MEMORY" "$UNDER_TORCHRUN"
