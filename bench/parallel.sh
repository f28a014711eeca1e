#!/usr/bin/env bash
# Two processes of one thread each: Millrace's data parallelism against PyTorch's, and measured steps of pipelines
# against simulated ones. See bench/parallel.py, whose options it takes.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(python3-torch python3-torchvision libopenblas0 openmpi-bin)
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "parallel: installing ${missing[*]}"
  sudo=()
  ((EUID == 0)) || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

exec /usr/bin/python3 bench/parallel.py "$@"
