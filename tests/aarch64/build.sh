#!/usr/bin/env bash
# Builds hearth for aarch64 in build/aarch64 (static, scalar kernels), to be run under qemu-aarch64.
# The four Debian arm64 -dev packages are unpacked into build/aarch64-root by an apt of their own: the machine's own package state stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD/build/aarch64-root
if [ ! -e "$root/complete" ]; then
    rm -rf "$root"
    mkdir -p "$root/apt/state/lists/partial" "$root/apt/cache/archives/partial" "$root/apt/debs"
    touch "$root/apt/state/status"
    apt=(apt-get -q -o Dir::State="$root/apt/state" -o Dir::State::status="$root/apt/state/status" -o Dir::Cache="$root/apt/cache"
         -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root)
    "${apt[@]}" update
    (cd "$root/apt/debs" && "${apt[@]}" download libjansson-dev libpcre2-dev libxxhash-dev libinih-dev)
    for deb in "$root"/apt/debs/*.deb; do dpkg -x "$deb" "$root"; done
    rm -rf "$root/apt"
    touch "$root/complete"
fi
export HEARTH_ARM64_ROOT=$root
cmake -S . -B build/aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/tests/aarch64/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release -DHEARTH_TESTS=OFF -DHEARTH_NETWORK=OFF >build/aarch64.log
ninja -C build/aarch64 hearth >>build/aarch64.log || { tail -40 build/aarch64.log; exit 1; }
