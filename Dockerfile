# One image for Spark's master and worker and for Airflow's components; docker-compose.yml says what each of them runs.
FROM python:3.11.16-slim-bookworm

# Debian keeps one version of each package at a time: with a version named here, the next update would break the build.
# hadolint ignore=DL3008
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install -y --no-install-recommends curl openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/sluice
COPY requirements-uv.txt requirements.txt ./
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements-uv.txt \
    && uv pip install --system --no-cache --no-deps --compile-bytecode --require-hashes -r requirements.txt

COPY . .
ENV SLUICE_JARS=/opt/sluice/.sluice/jars
RUN uv pip install --system --no-cache --no-deps --no-build-isolation -e . \
    && python -m compileall -q etl \
    && python -c "from pathlib import Path; from etl.services import JarSet, jars; jars(JarSet.SPARK, Path('$SLUICE_JARS'))" \
    && useradd --uid 1000 --home-dir /var/lib/sluice --create-home sluice

USER 1000
