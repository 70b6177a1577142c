#!/usr/bin/env bash
# From a fresh Debian 12 machine to an answer from a cluster: installs the packages that are missing, builds, converts the small model in models/, starts a
# coordinator and three nodes on this machine, asks a question through the API, and keeps serving until Ctrl-C.
# Can be run again at any time; everything it makes lies in build/. usage: deploy/quickstart.sh [--once] [question]   --once: stop after the answer
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/packages.sh

ONCE=0
if [ "${1:-}" = --once ]; then ONCE=1; shift; fi
QUESTION=${1:-What is the capital of France?}
PORT=${HEARTH_PORT:-8080}
PACK=build/models/kindling-int4
RUN=build/quickstart
BIN=build/release

say "1/5 Packages"
install_missing "${BUILD_PACKAGES[@]}" curl

say "2/5 Building (log: build/quickstart.log)"
mkdir -p build
{ cmake --preset release -DHEARTH_TESTS=OFF && cmake --build --preset release --target hearth hearth-node hearth-coordinator; } >build/quickstart.log 2>&1 ||
    { tail -n 30 build/quickstart.log >&2; echo "The build failed; the whole log is build/quickstart.log" >&2; exit 1; }

say "3/5 Converting models/kindling to 4 bit ($PACK)"
mkdir -p build/models
$BIN/cli/hearth convert models/kindling "$PACK" --precision int4

say "4/5 Starting a coordinator and three nodes (logs: $RUN/*.log)"
rm -rf "$RUN"
mkdir -p "$RUN"
pids=()
stop() {
    trap - EXIT INT TERM
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$RUN"
}
trap stop EXIT
trap 'stop; exit 130' INT TERM
for name in coordinator laptop-1 laptop-2 desktop; do
    $BIN/cli/hearth keys new "$RUN/$name.key" >/dev/null
    [ $name = coordinator ] || $BIN/cli/hearth keys trust "$RUN/trusted" "$($BIN/cli/hearth keys show "$RUN/$name.key")" "$name" >/dev/null
done
$BIN/coordinator/hearth-coordinator --model "$PACK" --nodes 3 --listen "127.0.0.1:$PORT" --control tcp://127.0.0.1:7600 --rows tcp://127.0.0.1:7601 \
    --key "$RUN/coordinator.key" --trust "$RUN/trusted" >"$RUN/coordinator.log" 2>&1 &
pids+=($!)
rows=7602
for name in laptop-1 laptop-2 desktop; do
    $BIN/node/hearth-node --model "$PACK" --name "$name" --coordinator tcp://127.0.0.1:7600 --bind "tcp://127.0.0.1:$rows" --threads 1 \
        --metrics "127.0.0.1:$((rows + 10))" --key "$RUN/$name.key" --coordinator-key "$($BIN/cli/hearth keys show "$RUN/coordinator.key")" >"$RUN/$name.log" 2>&1 &
    pids+=($!)
    rows=$((rows + 1))
done
for i in $(seq 100); do
    curl -sf -o /dev/null "http://127.0.0.1:$PORT/health" && break
    for pid in "${pids[@]}"; do
        kill -0 "$pid" 2>/dev/null || { tail -n 5 "$RUN"/*.log >&2; echo "A process ended; is another cluster running, or port $PORT in use? (HEARTH_PORT=8081 $0)" >&2; exit 1; }
    done
    [ "$i" -lt 100 ] || { tail -n 5 "$RUN"/*.log >&2; echo "The cluster did not become ready in 20 s" >&2; exit 1; }
    sleep 0.2
done

say "5/5 Asking through the API: $QUESTION"
json_escape() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' <<<"$1"; }
curl -sS "http://127.0.0.1:$PORT/v1/chat/completions" -H 'Content-Type: application/json' \
    -d "{\"messages\": [{\"role\": \"user\", \"content\": \"$(json_escape "$QUESTION")\"}], \"temperature\": 0}"
echo
$BIN/cli/hearth status "http://127.0.0.1:$PORT"
cat <<END

Point any OpenAI client at  http://127.0.0.1:$PORT/v1  (any API key), or go on here with
  $BIN/cli/hearth chat http://127.0.0.1:$PORT
END
[ $ONCE -eq 0 ] || exit 0
echo "Serving until Ctrl-C."
while :; do
    wait -n || true
    echo "A process ended; see above and the logs in $RUN." >&2
    tail -n 3 "$RUN"/*.log >&2
    exit 1
done
