# Prometheus from Debian's packages, for machines that reach no registry of images:
#   docker build -f deploy/docker/prometheus.Dockerfile -t antiphon-prometheus:debian .
# It runs deploy/prometheus with deploy/debian.yaml behind compose.yaml.

FROM debian:bookworm-slim
# wget: the health check of compose.yaml asks with it.
# Logs, indexes and ldconfig's cache carry times and order; without them two builds have the same files.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus wget && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/* && \
    install -d -o 65534 -g 65534 /prometheus
USER 65534:65534
EXPOSE 9090
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
