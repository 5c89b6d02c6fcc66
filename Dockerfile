# The appliance in one image: `docker build .` needs no hub and no token (the default model comes from a wheel).
#
#   docker build --build-arg MODEL=Qwen/Qwen3-0.6B --build-arg REVISION=main --secret id=hf_token,src=token .
#   docker build --build-arg VARIANT=cuda .
#
# Wheels that lie in .ci/wheels are used; with PIP_NO_INDEX=1 nothing else is (`make image` does both).
ARG BASE=debian:bookworm-slim

# What every stage has, and all that the final one gets from the distribution.
FROM ${BASE} AS system
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 nginx-light \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/apt/*.bin /var/cache/debconf/*-old /etc/nginx /var/www

FROM system AS build-tools
RUN apt-get update && apt-get install -y --no-install-recommends g++ python3-venv

# So that a line of pyproject.toml that names no package installs nothing anew.
FROM system AS requirements
ARG VARIANT=cpu
COPY pyproject.toml .ci/image/requirements.py ./
RUN case "$VARIANT" in \
        cpu) extras="engine"; build="+cpu" ;; \
        cuda) extras="engine gpu"; build="" ;; \
        *) echo "VARIANT is cpu or cuda, not $VARIANT" >&2; exit 1 ;; \
    esac \
 && python3 requirements.py $extras | sed "s/^\(torch==[0-9.]*\)/\1$build/" > requirements.txt

FROM build-tools AS build
RUN python3 -m venv /opt/breadbox/venv
WORKDIR /build
# Where pip finds torch's CPU build, if not in .ci/wheels nor in pip's own configuration.
ARG TORCH_INDEX=
ARG PIP_NO_INDEX=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_FIND_LINKS=/wheels PATH=/opt/breadbox/venv/bin:$PATH
COPY .ci/image/constraints.txt ./
COPY --from=requirements /requirements.txt ./
RUN --mount=type=bind,source=.ci/wheels,target=/wheels --mount=type=cache,target=/root/.cache/pip \
    pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt --requirement requirements.txt

# Only from its own sources (neither torch nor any other package), as it takes the longest.
FROM build-tools AS native
WORKDIR /build
COPY engine/errors.py engine/
COPY engine/kernels/native engine/kernels/native
RUN python3 -m engine.kernels.native.build

FROM build AS app
COPY pyproject.toml README.md LICENSE ./
COPY appliance appliance
COPY engine engine
COPY nginx nginx
RUN pip install --no-index --no-deps --no-build-isolation --target /opt/breadbox/app .
COPY --from=native /build/engine/kernels/native/build /opt/breadbox/app/engine/kernels/native/build

FROM app AS model
# Away from the sources, which have no compiled kernels beside them and would be imported first.
WORKDIR /
ARG MODEL=default
ARG REVISION=
ARG DTYPE=auto
# The default model's source has four bits a weight, which int4_a8 keeps; another model is not rounded unasked.
ARG QUANTIZATION=
ARG VARIANT=cpu
ARG PIP_NO_INDEX=
RUN --mount=type=bind,source=.ci/wheels,target=/wheels --mount=type=secret,id=hf_token \
    if [ -s /run/secrets/hf_token ]; then HF_TOKEN=$(cat /run/secrets/hf_token); export HF_TOKEN; fi; \
    if [ "$MODEL$VARIANT" = defaultcpu ]; then packed=int4_a8; else packed=none; fi; \
    PYTHONPATH=/opt/breadbox/app python -m appliance bake "$MODEL" ${REVISION:+--revision "$REVISION"} \
        --dtype "$DTYPE" --quantization "${QUANTIZATION:-$packed}" --out /opt/breadbox/models/model \
 && chmod -R a+rX /opt/breadbox/models

FROM build AS packages
ARG VARIANT=cpu
COPY .ci/image/trim.py ./
RUN python trim.py "$VARIANT" /opt/breadbox/venv \
 && echo /opt/breadbox/app > /opt/breadbox/venv/lib/python3.11/site-packages/breadbox.pth

FROM system AS final
COPY --from=packages /opt/breadbox/venv /opt/breadbox/venv
COPY --from=model /opt/breadbox/models /opt/breadbox/models
COPY --from=app /opt/breadbox/app /opt/breadbox/app
RUN --mount=type=bind,source=.ci/image,target=/mnt \
    chmod g+w /run && ln -s /opt/breadbox/app/bin/breadbox /usr/local/bin/breadbox \
 && /opt/breadbox/venv/bin/python /mnt/sbom.py /usr/share/breadbox/sbom.json \
 && install -d -m 775 -g 0 /run/breadbox

ARG VARIANT=cpu
ARG VERSION=0.1.0
ARG GIT_REVISION=unknown
LABEL org.opencontainers.image.title="Breadbox" \
      org.opencontainers.image.description="An LLM appliance: the OpenAI HTTP API over a model that is baked in" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${GIT_REVISION}" \
      breadbox.variant="${VARIANT}"

# Any user will do that has group 0. Written is only below the first writable one of XDG_RUNTIME_DIR, /run and /tmp.
USER 10001:0
ENV PATH=/opt/breadbox/venv/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    XDG_RUNTIME_DIR=/run/breadbox \
    PYTHONDONTWRITEBYTECODE=1 \
    BREADBOX_MODELS_DIR=/opt/breadbox/models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["breadbox", "health"]
ENTRYPOINT ["breadbox"]
CMD ["serve"]
