# Antiphon for NVIDIA cards: docker build -f deploy/docker/cuda.Dockerfile -t antiphon:cuda .
# Two stages: what builds stays behind, and the image is Python, the wheels and nobody's shell history.

FROM python:3.11.10-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/antiphon
ENV PATH=/opt/antiphon/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# torch brings its own CUDA libraries; of the machine it needs the driver, which the container runtime lends.
COPY constraints.txt ./
RUN pip install -c constraints.txt torch==2.13.0
COPY pyproject.toml README.md LICENSE ./
COPY server server
COPY clients clients
COPY quantize quantize
COPY web web
COPY weights weights
RUN pip install -c constraints.txt '.[torch,otel]' ./weights && find /opt/antiphon -name __pycache__ -prune -exec rm -rf {} +

FROM python:3.11.10-slim-bookworm
# Triton builds its launchers with a C compiler when the first kernel runs.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin antiphon && install -d -o antiphon /models /kernels
COPY --from=build /opt/antiphon /opt/antiphon
# No bytecode: the file system is read-only. HOME for libraries that insist on a cache.
ENV PATH=/opt/antiphon/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HOME=/models HOME=/tmp \
    ORT_DISABLE_TELEMETRY=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
EXPOSE 8998 8999
ENTRYPOINT ["antiphon"]
CMD ["serve", "--host=0.0.0.0", "--free-rows-port=8999"]
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8998/healthz', timeout=3)"]
