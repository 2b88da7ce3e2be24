# The server alone (`--target server`), or everything the stack needs (`--target stack`).
# Another base: --build-arg PYTHON=python:3.11-slim-bookworm@sha256:...
ARG PYTHON=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b
FROM ${PYTHON} AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /app
# A volume takes the owner of the directory it is mounted over; one that is not there is root's.
RUN useradd --system --create-home --uid 10001 headrace \
  && mkdir -p /data /data/state /data/envoy && chown -R headrace /data && chmod 700 /data/state

FROM base AS server
COPY requirements/run.txt requirements/
RUN pip install --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-deps --no-build-isolation .
USER headrace
VOLUME /data
ENV DS_SERVER__HOST=0.0.0.0 DS_STORAGE__MODE=file-durable DS_STORAGE__DATA_DIR=/data/streams
EXPOSE 4437
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:4437/readyz', timeout=2)"]
STOPSIGNAL SIGTERM
CMD ["headrace", "serve"]

FROM base AS stack
COPY requirements/dev.txt requirements/
RUN pip install --require-hashes -r requirements/dev.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-deps --no-build-isolation .
USER headrace
VOLUME /data
ENV HEADRACE_STATE_DIR=/data/state
CMD ["headrace", "--help"]
