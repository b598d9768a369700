# The image of examples/kubernetes: docker build --tag cpudist:0.2.0 --build-arg PIP_EXTRA_INDEX_URL=... .
# For PyTorchJob, TrainJob, and MPIJob with Intel MPI, MPICH or Open MPI. Its user is not root.
# BASE with a digest (debian:bookworm-slim@sha256:...) fixes Debian's part of the image, too.
ARG BASE=debian:bookworm-slim
FROM $BASE

# PyTorch's index of CPU builds, which pip reads from here.
ARG PIP_EXTRA_INDEX_URL

# g++ and Python's headers stay: torch.compile needs them too. tcmalloc is preloaded, sshd is for MPIJob, curl for
# example scripts.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates curl g++ libtcmalloc-minimal4 mpich openmpi-bin openssh-client openssh-server python3-dev \
        python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --uid 1000 --create-home --shell /bin/bash cpudist \
    && mkdir -p /data /home/cpudist/.ssh \
    && chown cpudist: /data /home/cpudist/.ssh
COPY container/ssh_config /etc/ssh/ssh_config.d/cpudist.conf
COPY container/sshd_config /home/cpudist/sshd_config

# What runs belongs to root, so a job cannot change it.
ENV PATH=/opt/cpudist/bin:$PATH PYTHONUNBUFFERED=1
COPY container/requirements.txt /opt/requirements.txt
RUN python3 -m venv /opt/cpudist \
    && pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement /opt/requirements.txt
COPY container/build-requirements.txt scripts/manylinux/compile_modules.py /opt/source/
COPY pyproject.toml README.md LICENSE /opt/source/cp311/
COPY cpudist /opt/source/cp311/cpudist
COPY docs /opt/source/cp311/docs
COPY stand_ins /opt/source/cp311/stand_ins
# As in a wheel, oneCCL is in the compiled module. Its package is for compiling only.
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement /opt/source/build-requirements.txt \
    && PYTHONPATH=/opt/source/cp311 python3 /opt/source/compile_modules.py /opt/source python3 \
    && pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation /opt/source/cp311 \
    && pip uninstall --yes oneccl-cpu-devel oneccl-cpu \
    && rm -r /opt/source

COPY examples/*.py /opt/examples/

USER 1000

WORKDIR /data
CMD ["cpudist", "doctor"]
