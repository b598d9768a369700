#!/usr/bin/env bash
# Collect the wheels of an environment, and their hashes, for a cluster without the internet:
#   scripts/wheelhouse.sh FOLDER [PACKAGE]...   torch 2.13.0 and the wheel of this Python in dist/, with [ccl,hf], by default
#   PYTHON=python3.12 GLIBC=2.34 scripts/wheelhouse.sh …     for that Python, and nodes with this glibc or a newer one
# On a node, or once in a folder that all nodes share:
#   pip install --no-index --find-links FOLDER --require-hashes -r FOLDER/requirements.txt
# PyPI's torch is a CUDA build of several GB; PIP_EXTRA_INDEX_URL names PyTorch's index of CPU builds.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ $# -gt 0 ] || die "give a folder for the wheels"
folder=$1
shift
python=${PYTHON:-python3}
glibc=${GLIBC:-2.28} # of RHEL 8
if [ $# = 0 ]; then
    tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    wheels=("$(dirname "${BASH_SOURCE[0]}")"/../dist/cpudist-*-"$tag"-*.whl)
    [ -e "${wheels[0]}" ] || die "there is no wheel for $tag in dist/; name one: scripts/wheelhouse.sh FOLDER torch==2.13.0 'WHEEL[ccl,hf]'"
    set -- torch==2.13.0 "${wheels[0]}[ccl,hf]"
fi
[ -z "$(ls -A "$folder" 2>/dev/null)" ] || die "$folder is not empty"

platforms=(--platform "manylinux2014_$(uname -m)" --platform "manylinux1_$(uname -m)" --platform any)
for ((minor = 5; minor <= ${glibc#2.}; minor++)); do platforms+=(--platform "manylinux_2_${minor}_$(uname -m)"); done
timeout --foreground 3600 "$python" -m pip download --quiet --disable-pip-version-check --only-binary :all: "${platforms[@]}" \
    --dest "$folder" "$@"
(
    cd "$folder"
    for wheel in *.whl; do
        IFS=- read -r name version _ <<<"$wheel"
        printf '%s==%s --hash=sha256:%s\n' "$name" "$version" "$(sha256sum "$wheel" | cut -d ' ' -f 1)"
    done >requirements.txt
)
printf '%s: %s wheels, %s\n' "$folder" "$(wc -l <"$folder/requirements.txt")" "$(du -sh "$folder" | cut -f 1)"
