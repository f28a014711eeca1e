#!/usr/bin/env bash
# Two processes of one thread each: Millrace's data parallelism against PyTorch's, and measured steps of pipelines
# against simulated ones. See bench/parallel.py, whose options it takes.
set -euo pipefail
cd "$(dirname "$0")/.."

source bench/install_packages.sh
install_packages parallel python3-torch python3-torchvision libopenblas0 openmpi-bin

exec /usr/bin/python3 bench/parallel.py "$@"
