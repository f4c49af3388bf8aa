#!/usr/bin/env bash
# Builds the image where there is no engine and no registry, and enters it: Debian, root, the
# packages buildah and debootstrap, and the package index that pip is set up for.
#
#   infra/check-image.sh [FOLDER [MOUNT...]]
#
# The base is a Debian that debootstrap makes, in place of python:3.11-slim-bookworm; all steps of
# the Dockerfile run in it. Each MOUNT is a file or a folder of this machine that the
# build needs besides, such as pip's configuration. docs/deploying.md says what this shows and what
# it does not.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${1:-/tmp/bertsmith-image}
base=localhost/bertsmith-base:bookworm
image=localhost/bertsmith:0.1.0
# chroot and vfs: no user namespaces, no overlays and no control groups are asked of the machine.
builder() { buildah --storage-driver vfs "$@"; }
mkdir -p "$work"

for program in buildah debootstrap; do
    command -v "$program" > /dev/null || { echo "needs Debian's package $program" >&2; exit 2; }
done

if ! builder inspect --type image "$base" > /dev/null 2>&1; then
    echo "== a Debian to build on"
    [ -d "$work/root/usr" ] || debootstrap --variant=minbase \
        --include=ca-certificates,python3,python3-venv bookworm "$work/root"
    container=$(builder from scratch)
    builder add --quiet "$container" "$work/root" /
    builder commit --quiet --rm "$container" "$base"
fi

echo "== the steps of infra/Dockerfile"
mounts=()
for path in "${@:2}"; do mounts+=(--volume "$path:$path:ro"); done
# Of the format docker: the other one has no room for a health check.
builder bud --format docker --isolation chroot --pull-never --file infra/Dockerfile --tag "$image" \
    --build-arg BASE="$base" --build-arg CPU_WHEELS= "${mounts[@]}" .

echo "== inside, as its own user"
container=$(builder from --pull-never "$image")
trap 'builder rm "$container" > /dev/null' EXIT
inside() { builder run --isolation chroot "$container" -- /usr/local/bin/entrypoint "$@"; }
inside id
[ "$(inside id -u)" = 1000 ]
inside bertsmith --version
inside bertsmith recipes | sed -n 1,3p  # head would close the pipe, which ends the script
inside python -m flows.local.health
builder inspect --type image "$image" | grep local.health > /dev/null  # as the image says
inside cat /opt/bertsmith/share/bertsmith/prefect.yaml /opt/bertsmith/share/bertsmith/automations.yaml > /dev/null
for program in cc gcc g++ c++ clang tcc ld make; do
    if inside sh -c "command -v $program"; then
        echo "the image must hold no compiler, found $program" >&2
        exit 1
    fi
done
echo '== what its entry point asks of Debian'
inside tini --version
inside python -m pip check
# Whoever gets in may write to its own folders alone.
inside sh -c 'touch /var/lib/bertsmith/x && rm /var/lib/bertsmith/x && ! touch /opt/bertsmith/x 2> /dev/null'
echo "== every role's command is there"
inside prefect version
inside ray --version
inside mlflow --version
inside first-start /credentials
echo "== a run, from raw text to registered models"
inside sh -c 'cat > small.yaml' << 'RECIPE'
corpus:
  sources:
    - {kind: installed_documentation, packages: [numpy, networkx], max_source_megabytes: 0.4}
vocabulary: {size: 1000}
examples: {max_tokens: 64}
pretraining:
  {size: tiny, num_steps: 20, global_batch_size: 16, micro_batch_size: 8,
   evaluation_examples: 64, final_evaluation_examples: 64}
finetuning: {num_epochs: 1, num_evaluations: 1}
RECIPE
inside bertsmith run small.yaml
inside bertsmith models
builder images | grep -E "REPOSITORY|bertsmith"
