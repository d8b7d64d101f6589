# Antiphon for CPUs, without torch: it runs models that have ONNX graphs; the built-in models have.
#   docker build -f deploy/docker/cpu.Dockerfile -t antiphon:cpu .
# With torch, for every other model, and to make graphs (pocket: Pocket-TTS):
#   docker build -f deploy/docker/cpu.Dockerfile --build-arg EXTRAS=torch,pocket,quantize,otel -t antiphon:cpu-torch .
# Two stages: the tools that build stay in the first; the image holds Python and the installed wheels.

FROM python:3.11.10-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/antiphon
ENV PATH=/opt/antiphon/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# With another index for pip, for example --build-arg PIP_EXTRA_INDEX_URL=... where torch's CPU wheels are: the
# default index carries gigabytes of CUDA with them.
ARG PIP_EXTRA_INDEX_URL=
ARG EXTRAS=otel
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY server server
COPY clients clients
COPY quantize quantize
COPY web web
COPY weights weights
# The published weights of the built-in models are for torch only. pip goes, with the caches: the image runs as it is.
RUN pip install -c constraints.txt ".[$EXTRAS]" && \
    case ",$EXTRAS," in *,torch,*) pip install ./weights ;; esac && \
    pip uninstall --yes pip && find /opt/antiphon -name __pycache__ -prune -exec rm -rf {} +

FROM python:3.11.10-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin antiphon && install -d -o antiphon /models
COPY --from=build /opt/antiphon /opt/antiphon
# No bytecode: the file system is read-only. HOME for libraries that insist on a cache.
ENV PATH=/opt/antiphon/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HOME=/models HOME=/tmp \
    ORT_DISABLE_TELEMETRY=1
USER 10001:10001
EXPOSE 8998 8999
ENTRYPOINT ["antiphon"]
CMD ["serve", "--host=0.0.0.0", "--free-rows-port=8999"]
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8998/healthz', timeout=3)"]
