#!/bin/sh
# Makes the demo language model where it is wanted and missing, then becomes tritonserver with both models loaded.
# Further arguments are passed on to it.
set -eu

: "${VRAMGATE_TRITON__ADMIN_KEY:?set it: it closes the management API to everybody else}"
apis=model-repository,shared-memory,trace,logging
guard="$apis:x-vramgate-admin=$VRAMGATE_TRITON__ADMIN_KEY"

# 0 where llama.model names the demo model
wants_demo() {
    python -c 'from common import model_folder, settings
raise SystemExit(settings.load().llama.model != model_folder.DEMO_NAME)'
}
if wants_demo; then
    python -m backend.checkpoint
fi

# Its own spans, of requests alone that belong to a trace already.
if [ -n "${VRAMGATE_LOG__TRACES:-}" ]; then
    set -- "--trace-config=mode=opentelemetry" "--trace-config=opentelemetry,url=$VRAMGATE_LOG__TRACES" \
        "--trace-config=level=TIMESTAMPS" "--trace-config=rate=0" "$@"
fi

# Guests are loaded beside the two.
for guest in $(python -c 'from common import settings; print(*settings.load().guests.models)'); do
    set -- "--load-model=$guest" "$@"
done

# One model after the other: each takes its standing memory and warms up alone.
exec tritonserver \
    --model-repository="${VRAMGATE_TRITON__MODEL_REPOSITORY:-/models}" \
    --model-control-mode=explicit \
    --load-model=unet \
    --load-model=llama \
    --model-load-thread-count=1 \
    --disable-auto-complete-config \
    --http-restricted-api="$guard" \
    --grpc-restricted-protocol="$guard" \
    --exit-timeout-secs="${VRAMGATE_TRITON__EXIT_TIMEOUT_S:-8}" \
    --log-format=ISO8601 \
    "$@"
