#!/usr/bin/env bash
# Sets up everything that the tests need and runs them all: unit and golden tests in a release, an ASan+UBSan and a TSan build, the command line tests,
# and the aarch64 comparison under qemu. Prints a last line "N passed, N failed". Everything it makes lies in build/.
# usage: tests/run.sh [--quick]   --quick: release build only
set -uo pipefail
cd "$(dirname "$0")/.."
source deploy/packages.sh
QUICK=0
[ "${1:-}" = --quick ] && QUICK=1
LOGS=build/test-logs
mkdir -p "$LOGS"
rm -f "$LOGS"/*
passed=0 failed=0

die() { echo "$*" >&2; echo "$passed passed, $((failed + 1)) failed"; exit 1; }
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM

build() { # build PRESET
    say "Building $1"
    { cmake --preset "$1" -DHEARTH_TESTS=ON && cmake --build --preset "$1"; } >"$LOGS/build-$1.log" 2>&1 || { tail -n 40 "$LOGS/build-$1.log"; die "build $1 failed"; }
}

# run_programs PRESET [ctest options]: counts single cmocka tests; a program that died without its closing lines counts as one failure.
run_programs() {
    local preset=$1 log=$LOGS/ctest-$1.log
    shift
    say "Testing $preset"
    ctest --test-dir "build/$preset" -j 2 --output-on-failure --no-tests=error --verbose "$@" >"$log" 2>&1
    local status=$? ok bad
    ok=$(grep -c '\[       OK \]' "$log")
    bad=$(grep -c '\[  FAILED  \] [^0-9]' "$log")
    [ $status -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
    [ $status -ne 0 ] && grep -E '\[  FAILED  \]|ERROR|runtime error|\*\*\*Failed|\*\*\*Timeout' "$log" | head -n 40
    echo "   $ok passed, $bad failed ($log)"
    passed=$((passed + ok)) failed=$((failed + bad))
}

# run_pytest PRESET [pytest arguments]: with the programs of that build.
run_pytest() {
    local build=$PWD/build/$1 log=$LOGS/pytest-$1.log status ok bad
    shift
    HEARTH=$build/cli/hearth HEARTH_BUILD=$build HEARTH_API_SERVER=$build/tests/api/api_server \
        build/venv/bin/python -m pytest -q -p no:cacheprovider "$@" 2>&1 | tee "$log" | tail -n 15
    status=${PIPESTATUS[0]}
    ok=$(grep -oE '[0-9]+ passed' "$log" | tail -n 1 | grep -oE '[0-9]+')
    bad=$(grep -oE '[0-9]+ (failed|error)' "$log" | tail -n 2 | grep -oE '[0-9]+' | awk '{n += $1} END {print n + 0}')
    [ "$status" -ne 0 ] && [ "${bad:-0}" -eq 0 ] && bad=1
    passed=$((passed + ${ok:-0})) failed=$((failed + ${bad:-0}))
}

say "Packages"
install_missing "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" || die "packages are missing"
say "Python for the tests (build/venv)"
[ -x build/venv/bin/python ] || python3 -m venv build/venv || die "python3 -m venv failed"
build/venv/bin/python -m pip install -q --disable-pip-version-check -r tests/requirements.txt >"$LOGS/pip.log" 2>&1 || { tail "$LOGS/pip.log"; die "pip failed"; }

build release
run_programs release
if [ $QUICK -eq 0 ]; then
    build asan
    run_programs asan
    build tsan
    TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" run_programs tsan -R 'golden_|kernels_|node_'
    say "Building for aarch64"
    tests/aarch64/build.sh >"$LOGS/build-aarch64.log" 2>&1 || { tail -n 40 "$LOGS/build-aarch64.log"; die "aarch64 build failed"; }
fi

say "Command line, house$([ $QUICK -eq 0 ] && echo ', aarch64')"
ignore=()
[ $QUICK -eq 1 ] && ignore=(--ignore tests/aarch64)
run_pytest release "${ignore[@]}" tests
if [ $QUICK -eq 0 ]; then
    say "The API, with sanitizers"
    run_pytest asan tests/api
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
