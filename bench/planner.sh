#!/usr/bin/env bash
# Predicted against real on this machine: step time and memory of four ways to run each model, and whether the plan that
# is chosen is the fastest. See bench/planner.py, whose options it takes.
set -euo pipefail
cd "$(dirname "$0")/.."

[[ -x build/release/bin/millrace ]] || { echo "planner: build first: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
exec python3 bench/planner.py "$@"
