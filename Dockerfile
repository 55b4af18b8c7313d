# An image that runs `spider`:
#
#     docker build -t spider .
#     docker run --rm -v "$PWD:/data" -u "$(id -u)" spider fit ratings.csv --modes user,movie --value rating
#
# The kernels are compiled while the image is built. numba compiles for the CPU it runs on, and on another kind
# of CPU the container compiles them again at its first entry: build where it will run, or add
# NUMBA_CPU_NAME=generic to ENV for kernels that run everywhere, more slowly.
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/spider && /opt/spider/bin/pip install --no-cache-dir .

FROM python:3.13-slim
COPY --from=build /opt/spider /opt/spider
ENV PATH=/opt/spider/bin:$PATH \
    NUMBA_CACHE_DIR=/var/cache/spider
RUN useradd --system --create-home spider && install -d -o spider -m 0777 /var/cache/spider /data
USER spider
RUN spider warmup --modes 2,3,4
WORKDIR /data
ENTRYPOINT ["spider"]
