#!/usr/bin/env bash
# From a fresh Debian 12 machine to an answer: installs the packages that are missing, builds, converts the small model in models/, asks it a question.
# Can be run again at any time; everything it makes lies in build/.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/packages.sh

QUESTION=${1:-What is the capital of France?}
PACK=build/models/kindling-int4

say "1/4 Packages"
install_missing "${BUILD_PACKAGES[@]}"

say "2/4 Building (log: build/quickstart.log)"
mkdir -p build
{ cmake --preset release -DHEARTH_TESTS=OFF && cmake --build --preset release --target hearth; } >build/quickstart.log 2>&1 ||
    { tail -n 30 build/quickstart.log >&2; echo "The build failed; the whole log is build/quickstart.log" >&2; exit 1; }

say "3/4 Converting models/kindling to 4 bit ($PACK)"
mkdir -p build/models
build/release/cli/hearth convert models/kindling "$PACK" --precision int4

say "4/4 Asking: $QUESTION"
build/release/cli/hearth run "$PACK" "$QUESTION" --temperature 0

cat <<END

That was a small GLM with the architecture of GLM-5.2, in one process on this machine. Go on with
  build/release/cli/hearth chat $PACK
  build/release/cli/hearth --help
END
