# Stands in for the Prometheus image in tests where no registry answers.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* \
 && install -d -o 65534 -g 65534 /prometheus
USER 65534
EXPOSE 9090
ENTRYPOINT ["/usr/bin/prometheus"]
