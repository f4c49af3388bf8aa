#!/bin/sh
# What a role may need before it starts. The role itself is the command.
set -eu

# The first process of a container is sent no signal that it has no handler for, and gets everybody's
# dead children. tini is made for that place: it passes signals on, and reaps them.
if [ "$$" = 1 ]; then
    exec tini -- "$0" "$@"
fi

# Passwords that were made on the first start, as lines of a shell: docs/deploying.md.
if [ -n "${BERTSMITH_CREDENTIALS:-}" ]; then
    set -a
    . "${BERTSMITH_CREDENTIALS}"
    set +a
fi

# Who drives work on a Ray cluster has a node of it beside him, one without CPUs: a driver speaks to
# the cluster through its own node only. A node does not outlive its head; without it the command
# would go on and find no cluster, so it ends as well, and who restarts the container mends both.
# Left to itself the node takes more memory for objects than a container's /dev/shm has, and ends where
# an agent that chooses its port takes more than fifteen seconds to say so.
if [ -n "${BERTSMITH_RAY_HEAD:-}" ]; then
    said=$(mktemp)
    (
        ray start --address="${BERTSMITH_RAY_HEAD}" --num-cpus=0 --object-store-memory=268435456 \
            --metrics-export-port=52368 --dashboard-agent-listen-port=52365 \
            --dashboard-agent-grpc-port=52366 --runtime-env-agent-port=52367 \
            --block > "${said}" 2>&1 || true
        cat "${said}" >&2
        echo "the Ray node beside the command has ended, and the command with it" >&2
        kill "$$"  # the number that the command below keeps
    ) &
    node=$!
    until grep -q "Ray runtime started" "${said}"; do
        kill -0 "${node}" 2> /dev/null || exit 1
        sleep 1
    done
    export RAY_ADDRESS="${BERTSMITH_RAY_HEAD}"
fi

exec "$@"
