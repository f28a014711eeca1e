#!/usr/bin/env bash
# Installs what is missing, builds and runs all tests: ./test.sh [preset ...], presets release (the default), debug,
# asan (with ubsan) and tsan.
set -euo pipefail
cd "$(dirname "$0")"

# Several tests share the cores: threads that wait must not spin.
export OMP_WAIT_POLICY=passive

presets=("$@")
[ $# -gt 0 ] || presets=(release)
tools/install_dependencies.sh --tests
for preset in "${presets[@]}"; do
  echo "== $preset"
  [ -f "build/$preset/build.ninja" ] || cmake --preset "$preset" | { grep "not built" || true; }
  cmake --build --preset "$preset" | tail -n 1
  ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)" --progress
done
