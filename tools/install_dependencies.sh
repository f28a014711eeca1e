#!/usr/bin/env bash
# Installs the Debian packages that building Millrace needs, if any are missing; with --tests also those that its tests
# need. Quick when none is.
set -euo pipefail

# oneDNN's CMake files look for OpenCL, which its package only recommends.
packages=(g++ cmake ninja-build libdnnl-dev ocl-icd-opencl-dev libyaml-cpp-dev libcli11-dev libfmt-dev nlohmann-json3-dev libgtest-dev libgmock-dev libopenmpi-dev openmpi-bin
          libjpeg-dev libpng-dev libprotobuf-dev protobuf-compiler libutf8proc-dev libxxhash-dev)
# Parsers are fuzzed with clang's libFuzzer; Python writes and reads records independently.
[ "${1:-}" != --tests ] || packages+=(clang-14 libclang-rt-14-dev python3 python3-protobuf xxhash)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "run as root once, or: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
