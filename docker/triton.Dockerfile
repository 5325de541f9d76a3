# The model server: NVIDIA's Triton with this package, its engines and the models' configurations.
# docker build -f docker/triton.Dockerfile -t vramgate-triton .
ARG TRITON_TAG=26.07-py3
FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG}

# tini passes signals on and collects what engines leave behind.
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv tini \
    && rm -rf /var/lib/apt/lists/*

# An environment of its own, first on PATH: Triton's stub finds its packages by the first python3 there.
ENV VIRTUAL_ENV=/opt/vramgate \
    PATH=/opt/vramgate/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN python3 -m venv "$VIRTUAL_ENV"

# torch first, a layer that changes seldom. The CPU build: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
# numpy stays below 2 (constraints.txt): the stub of Triton 24.10 and older dies on strings with numpy 2.
WORKDIR /src
COPY constraints.txt ./
ARG TORCH_INDEX=https://pypi.org/simple
RUN grep -E '^(torch|numpy)==' constraints.txt > torch.txt \
    && pip install --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple -r torch.txt

# "backend" are the engines; "demo" reads the demo language model once.
ARG EXTRAS=backend,demo
COPY . .
RUN pip install --constraint constraints.txt ".[${EXTRAS}]" \
    && mkdir -p /models \
    && cp -r model_repository/. /models/ \
    && chmod -R a=rX /models \
    && install -m 0755 docker/triton-entrypoint.sh /usr/local/bin/vramgate-triton \
    && mkdir -m 1777 /var/lib/vramgate /var/cache/vramgate \
    && rm -rf /src/*

# Triton starts the stub by a plain shell command, so every path here is plain. The unet's demo weights lie in /models.
ENV HOME=/tmp \
    VRAMGATE_STATE__DIR=/var/lib/vramgate/state \
    VRAMGATE_STATE__CACHE_DIR=/var/cache/vramgate \
    VRAMGATE_TRITON__MODEL_REPOSITORY=/models
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["curl", "-sf", "http://127.0.0.1:8000/v2/health/ready"]
# NVIDIA's script looks at the driver and the card, then becomes ours, which becomes tritonserver.
ENTRYPOINT ["tini", "--", "/opt/nvidia/nvidia_entrypoint.sh", "vramgate-triton"]
