# syntax=docker/dockerfile:1
# t2t_flax with the packages of one accelerator:
#   docker build --build-arg ACCELERATOR=cpu|cuda|tpu [--build-arg EXTRAS=gcs,wandb] -t t2t-flax .
#   echo "It is late." | docker run -i t2t-flax translate --workdir=pretrained:toy
# launch/gke.sh and launch/xpk.sh start it by --image; configs/ lies in its work directory.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY pyproject.toml requirements-run.txt README.md LICENSE MANIFEST.in ./
COPY t2t_flax t2t_flax
RUN pip wheel --no-cache-dir --no-deps --wheel-dir=/wheels .

FROM python:${PYTHON}-slim
ARG ACCELERATOR=cpu
# By default every extra that a command may need (launch/shared.sh).
ARG EXTRAS=all,wandb,mlflow,trackio,ja,ko
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    case "$ACCELERATOR" in \
      cpu) extras=$EXTRAS ;; \
      cuda|tpu) extras="$EXTRAS,$ACCELERATOR" ;; \
      *) echo "ACCELERATOR=$ACCELERATOR: expected cpu, cuda or tpu" >&2; exit 2 ;; \
    esac \
    && pip install --no-cache-dir "$(echo /wheels/*.whl)[$extras]"
# The volume keeps compiled programs for the next container: -v t2t-cache:/cache
RUN mkdir -m 1777 /cache
RUN useradd --create-home --uid 1000 t2t
WORKDIR /home/t2t
COPY configs configs
ENV PYTHONUNBUFFERED=1 JAX_COMPILATION_CACHE_DIR=/cache/jax
VOLUME /cache
# Where device files belong to root and the launcher cannot choose a user: --build-arg RUN_AS=root
ARG RUN_AS=t2t
USER ${RUN_AS}
ENTRYPOINT ["t2t-flax"]
CMD ["--help"]
