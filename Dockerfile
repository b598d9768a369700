# The image of `cpudist render`: docker build --tag cpudist:0.1.0 .
# For PyTorchJob, TrainJob, and MPIJob with Intel MPI, MPICH or Open MPI. Its user is not root.
FROM debian:bookworm-slim

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# g++ and Python's headers stay: torch.compile needs them too. tcmalloc is preloaded, sshd is for MPIJob.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        g++ libtcmalloc-minimal4 mpich openmpi-bin openssh-client openssh-server python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --uid 1000 --create-home --shell /bin/bash cpudist \
    && mkdir -p /opt/cpudist /data /home/cpudist/.ssh \
    && chown cpudist: /opt/cpudist /data /home/cpudist/.ssh
COPY container/ssh_config /etc/ssh/ssh_config.d/cpudist.conf
COPY --chown=cpudist:cpudist container/sshd_config /home/cpudist/sshd_config

USER 1000
ENV PATH=/opt/cpudist/bin:$PATH CPUDIST_CACHE=/opt/cpudist/cache PYTHONUNBUFFERED=1
# torch with its exact version, which has a CPU build; a looser requirement installs gigabytes of CUDA packages.
RUN python3 -m venv /opt/cpudist \
    && /opt/cpudist/bin/pip install --no-cache-dir --disable-pip-version-check torch==2.13.0
COPY --chown=cpudist:cpudist pyproject.toml README.md LICENSE /home/cpudist/source/
COPY --chown=cpudist:cpudist cpudist /home/cpudist/source/cpudist
COPY --chown=cpudist:cpudist stand_ins /home/cpudist/source/stand_ins
RUN /opt/cpudist/bin/pip install --no-cache-dir --disable-pip-version-check '/home/cpudist/source[ccl,plot,recipes]' \
    && cpudist build

WORKDIR /data
CMD ["cpudist", "doctor"]
