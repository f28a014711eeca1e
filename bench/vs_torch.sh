#!/usr/bin/env bash
# Compares Millrace with Debian's PyTorch on this machine's CPU: see bench/vs_torch.py, whose options it takes.
set -euo pipefail
cd "$(dirname "$0")/.."

# OpenBLAS because PyTorch otherwise falls back to the generic BLAS, whose linear layers are several times slower.
source bench/install_packages.sh
install_packages vs_torch python3-torch python3-torchvision libopenblas0

# Debian's own interpreter: another python3 earlier in PATH would not find Debian's packages.
exec /usr/bin/python3 bench/vs_torch.py "$@"
