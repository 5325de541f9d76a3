#!/bin/sh
# Makes, once, what compose.yaml needs and no repository should hold: .env, vramgate.toml, the admin key, API keys.
# What is there already is left alone.
set -eu
umask 077
cd "$(dirname "$0")"

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
fill() { # VARIABLE VALUE: where the variable is there and empty
    sed -i "s|^$1=\$|$1=$2|" .env
}

[ -e .env ] || cp .env.example .env
fill VRAMGATE_UID "$(id -u)"
fill VRAMGATE_GID "$(id -g)"
fill VRAMGATE_ADMIN_KEY "$(random)"
fill GRAFANA_PASSWORD "$(random)"
if grep -q '^VRAMGATE_GPU=$' .env; then
    if gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null | head -1) && [ -n "$gpu" ]; then
        fill VRAMGATE_GPU "$gpu"
    else
        echo "no GPU found: .env is set to run on the CPU"
        sed -i -e 's|^COMPOSE_FILE=.*|COMPOSE_FILE=compose.yaml|' \
            -e 's|^TORCH_INDEX=.*|TORCH_INDEX=https://download.pytorch.org/whl/cpu|' .env
    fi
fi
[ -e vramgate.toml ] || cp ../vramgate.toml.example vramgate.toml
mkdir -p keys models

if [ ! -e keys/keys.json ]; then
    docker compose build frontend
    add() {
        docker compose run --rm --no-deps -T --volume "$PWD/keys:/etc/vramgate/keys" frontend \
            vramgate keys add "$@"
    }
    add prometheus --operator > keys/metrics_key
    chmod 0644 keys/metrics_key # read by Prometheus' own user; the folder around it is closed
    echo "an operator's key, to be kept; it is not shown again:"
    add operator --operator
fi
echo "ready: docker compose up --build --wait"
