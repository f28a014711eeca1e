#!/usr/bin/env bash
# How fast pictures become the network's input, on one core, against Pillow and torchvision; and whether training from
# them ever waits, or takes more memory than planned. See bench/data.py, whose options it takes.
set -euo pipefail
cd "$(dirname "$0")/.."

source bench/install_packages.sh
install_packages data python3-torch python3-torchvision python3-pil python3-numpy
tools/install_dependencies.sh
[ -f build/release/build.ninja ] || cmake --preset release >/dev/null
cmake --build --preset release --target millrace_cli data_probe | tail -n 1

# Debian's own interpreter: another python3 earlier in PATH would not find Debian's packages.
exec /usr/bin/python3 bench/data.py "$@"
