# Sourced by deploy/quickstart.sh and tests/run.sh: which Debian packages are needed, and installing those that are missing.
BUILD_PACKAGES=(build-essential cmake ninja-build pkg-config libjansson-dev libpcre2-dev libxxhash-dev
                libinih-dev libzmq3-dev libprotobuf-c-dev protobuf-c-compiler libmicrohttpd-dev liburing-dev)
TEST_PACKAGES=(libcmocka-dev python3 python3-venv git qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross iproute2)

say() { printf '\033[1m== %s\033[0m\n' "$*"; }

# install_missing PACKAGE...: asks for root only when something is missing; a second run needs neither root nor a network.
install_missing() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null || { echo "These packages are needed, and there is no apt-get here to install them: ${missing[*]}" >&2; return 1; }
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    say "Installing ${missing[*]}"
    "${as_root[@]}" apt-get -q update || return 1
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -q install -y --no-install-recommends "${missing[@]}"
}
