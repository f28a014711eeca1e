#!/usr/bin/env bash
# From a clone to a trained network: installs what is missing, builds, trains jobs/quickstart.yaml.
set -euo pipefail
cd "$(dirname "$0")"

tools/install_dependencies.sh
[ -f build/release/build.ninja ] || cmake --preset release | { grep "not built" || true; }
cmake --build --preset release --target millrace_cli | tail -n 1
exec build/release/bin/millrace train jobs/quickstart.yaml "$@"
