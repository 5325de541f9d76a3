# The frontend: routes, admission, ledger. No torch, no GPU.
# docker build -f docker/frontend.Dockerfile -t vramgate-frontend .
ARG PYTHON_TAG=3.12-slim-bookworm
FROM python:${PYTHON_TAG} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY . .
ARG EXTRAS=tracing
RUN python -m venv /opt/vramgate \
    && /opt/vramgate/bin/pip install --constraint constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON_TAG}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -m 1777 /var/lib/vramgate /var/cache/vramgate
COPY --from=build /opt/vramgate /opt/vramgate
ENV PATH=/opt/vramgate/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    VRAMGATE_SERVER__HOST=0.0.0.0 \
    VRAMGATE_STATE__DIR=/var/lib/vramgate/state \
    VRAMGATE_STATE__CACHE_DIR=/var/cache/vramgate
WORKDIR /tmp
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "frontend.serve"]
