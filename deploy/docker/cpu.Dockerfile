# Antiphon for CPUs: docker build -f deploy/docker/cpu.Dockerfile -t antiphon:cpu .
# Two stages: what builds stays behind, and the image is Python, the wheels and nobody's shell history.

FROM python:3.11.10-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/antiphon
ENV PATH=/opt/antiphon/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Where torch's CPU wheels are, for example --build-arg PIP_EXTRA_INDEX_URL=... with the index of README.md: the
# default index carries gigabytes of CUDA with them.
ARG PIP_EXTRA_INDEX_URL=
COPY constraints.txt ./
RUN pip install -c constraints.txt torch==2.13.0
COPY pyproject.toml README.md LICENSE ./
COPY server server
COPY clients clients
COPY quantize quantize
COPY web web
# pocket: Pocket-TTS speaks on CPUs; quantize: the service graphs makes what runs on ONNX.
RUN pip install -c constraints.txt '.[torch,pocket,quantize,otel]' && find /opt/antiphon -name __pycache__ -prune -exec rm -rf {} +

FROM python:3.11.10-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin antiphon && install -d -o antiphon /models
COPY --from=build /opt/antiphon /opt/antiphon
# No bytecode: the file system is read-only. HOME for libraries that insist on a cache.
ENV PATH=/opt/antiphon/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HOME=/models HOME=/tmp
USER 10001:10001
EXPOSE 8998 8999
ENTRYPOINT ["antiphon"]
CMD ["serve", "--host=0.0.0.0", "--agent-port=8999"]
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8998/healthz', timeout=3)"]
