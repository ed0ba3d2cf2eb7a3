#!/usr/bin/env bash
# Runs the steps of deploy/Containerfile without a container engine: copies the same files, installs them with the same command
# into an empty virtual environment, sets up and starts the service, and runs the health check.
#
#     tools/container_steps.sh            # takes the weights from $ALIMARK_HOME if it is set
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; rm -rf "$work"' EXIT
file=$root/deploy/Containerfile

mkdir "$work/src" "$work/data"
# Each COPY line lists the sources and, last, the target.
sed -n 's/^COPY //p' "$file" | while read -r -a words; do
    for source in "${words[@]:0:${#words[@]}-1}"; do cp -r "$root/$source" "$work/src/"; done
done
"${PYTHON:-python3}" -m venv "$work/venv"
export PATH="$work/venv/bin:$PATH" ALIMARK_HOME="${ALIMARK_HOME:-$work/data/home}" PYTHONUNBUFFERED=1
install=$(sed -n 's/^RUN \(pip install .*\) && rm -rf .*/\1/p' "$file")
(cd "$work/src" && bash -c "$install --quiet --disable-pip-version-check")
rm -rf "$work/src"

cd "$work/data"
alimark serve init --data "$work/data" > "$work/token"
grep -q '^generate alm_' "$work/token"
alimark serve --data "$work/data" --port 8766 2> "$work/log" &
server=$!
check="import urllib.request as r; print(r.urlopen('http://127.0.0.1:8766/healthz', timeout=4).read().decode())"
for _ in $(seq 240); do
    if python -c "$check" 2> /dev/null; then exit 0; fi
    kill -0 "$server" 2> /dev/null || break
    sleep 0.5
done
cat "$work/log"
exit 1
