#!/bin/sh
# Prepares a role; the role itself is the command.
set -eu

# The first process of a container receives no signal without a handler, and inherits orphaned
# processes. tini is made for that: it passes signals on and reaps orphans.
if [ "$$" = 1 ]; then
    exec tini -- "$0" "$@"
fi

# Passwords that were made on the first start, as lines of a shell: docs/deploying.md.
if [ -n "${BERTSMITH_CREDENTIALS:-}" ]; then
    set -a
    . "${BERTSMITH_CREDENTIALS}"
    set +a
fi

# A Ray driver reaches the cluster only through a node in its own container, here one without CPUs. A
# node ends with its head; the command would find no cluster any more, so it ends as well, and a restart
# of the container repairs both. By default Ray takes more object memory than a container's /dev/shm
# has, and a node ends if an agent needs more than fifteen seconds to choose and report its port.
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
