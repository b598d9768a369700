# The image of `cpudist render`: docker build --tag cpudist:0.2.0 .
# For PyTorchJob, TrainJob, and MPIJob with Intel MPI, MPICH or Open MPI. Its user is not root.
# BASE with a digest (debian:bookworm-slim@sha256:...) makes the same image again and again.
ARG BASE=debian:bookworm-slim
FROM $BASE

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

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
ENV PATH=/opt/cpudist/bin:$PATH CPUDIST_CACHE=/opt/cpudist/cache PYTHONUNBUFFERED=1
# torch with its exact version, which has a CPU build; a looser requirement installs gigabytes of CUDA packages.
RUN python3 -m venv /opt/cpudist \
    && /opt/cpudist/bin/pip install --no-cache-dir --disable-pip-version-check torch==2.13.0
COPY pyproject.toml README.md LICENSE /opt/source/
COPY cpudist /opt/source/cpudist
COPY stand_ins /opt/source/stand_ins
# Hugging Face's example scripts import evaluate.
RUN /opt/cpudist/bin/pip install --no-cache-dir --disable-pip-version-check \
        '/opt/source[ccl,plot,recipes]' evaluate==0.4.6 \
    && cpudist build

USER 1000

WORKDIR /data
CMD ["cpudist", "doctor"]
