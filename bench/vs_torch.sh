#!/usr/bin/env bash
# Compares Millrace with Debian's PyTorch on this machine's CPU: see bench/vs_torch.py, whose options it takes.
set -euo pipefail
cd "$(dirname "$0")/.."

# OpenBLAS because PyTorch otherwise falls back to the generic BLAS, whose linear layers are several times slower.
packages=(python3-torch python3-torchvision libopenblas0)
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "vs_torch: installing ${missing[*]}"
  sudo=()
  ((EUID == 0)) || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

# Debian's own interpreter: another python3 earlier in PATH would not find Debian's packages.
exec /usr/bin/python3 bench/vs_torch.py "$@"
