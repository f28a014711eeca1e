#!/usr/bin/env bash
# What freezing, planning anew, replicas and the cache make of training time, alone and together; see elastic.py.
exec python3 "$(dirname "$0")/elastic.py" "$@"
