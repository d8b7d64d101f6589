# Debian's Python under the name of the published image that deploy/docker/*.Dockerfile start from.
FROM debian:bookworm-slim
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 python3-venv ca-certificates && \
    ln -s python3 /usr/bin/python && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/* && \
    find / -xdev -name __pycache__ -prune -exec rm -rf {} +
