# The load balancer from Debian's packages, for machines that reach no registry of images:
#   docker build -f deploy/docker/haproxy.Dockerfile -t antiphon-haproxy:debian .
# It runs deploy/haproxy/haproxy.cfg with deploy/debian.yaml behind compose.yaml.

FROM debian:bookworm-slim
# Logs, indexes and ldconfig's cache carry times and order; without them two builds have the same files.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends haproxy && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/*
USER 99:99
EXPOSE 8080 8443 8404
STOPSIGNAL SIGUSR1
ENTRYPOINT ["haproxy"]
CMD ["-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
