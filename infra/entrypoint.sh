#!/bin/sh
# What a role may need before it starts. The role itself is the command.
set -eu

# Passwords that were made on the first start, as lines of a shell: docs/deploying.md.
if [ -n "${BERTSMITH_CREDENTIALS:-}" ]; then
    set -a
    . "${BERTSMITH_CREDENTIALS}"
    set +a
fi

# Who drives work on a Ray cluster has a node of it beside him, one without CPUs: a driver speaks to
# the cluster through its own node only.
if [ -n "${BERTSMITH_RAY_HEAD:-}" ]; then
    ray start --address="${BERTSMITH_RAY_HEAD}" --num-cpus=0 >&2
    export RAY_ADDRESS="${BERTSMITH_RAY_HEAD}"
fi

exec "$@"
