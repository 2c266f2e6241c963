# The workbook for a workshop: the base image's torch, JupyterLab behind a token, nobody is root.
#
#   docker build -t gpu-memory-workbook .
#   docker run --rm --gpus all -p 8888:8888 -v answers:/workbook/workspace gpu-memory-workbook
#
# JupyterLab prints an address with its token. Learners' copies and answers are kept in the volume.
# BASE is any image with torch 2.11 or later for CUDA and a Python of 3.11 to 3.14.
ARG BASE=pytorch/pytorch:2.11.0-cuda12.8-cudnn9-runtime
FROM ${BASE}

# hadolint ignore=DL3008
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends bubblewrap git make python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --shell /bin/bash learner \
    && install -d -o learner -g learner /workbook

# hadolint ignore=DL3066
USER learner
WORKDIR /workbook
COPY --chown=learner:learner . .
RUN make env SYSTEM_TORCH=1 && mkdir -p workspace

ENV PATH=/workbook/.venv/bin:$PATH
VOLUME ["/workbook/workspace"]
EXPOSE 8888
HEALTHCHECK --interval=5m --timeout=60s --start-period=60s CMD ["workbook", "doctor"]
CMD ["make", "lab", "LAB_ARGS=--ip=0.0.0.0 --port=8888 --no-browser"]
