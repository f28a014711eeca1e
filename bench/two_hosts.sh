#!/usr/bin/env bash
# Two hosts emulated on this machine: two network namespaces joined by a link of 1 Gb/s, one core each, MPI over TCP
# between them. AlexNet, 64 samples per host: data parallel against pipelines that keep the classifier in one place.
# Needs root (namespaces). Options: [--rate 1gbit] [--steps N] [--repeats N] [--out FILE]
set -euo pipefail
cd "$(dirname "$0")/.."

rate=1gbit steps=10 repeats=3 out=
while (($#)); do
  case $1 in
    --rate) rate=$2 ;;
    --steps) steps=$2 ;;
    --repeats) repeats=$2 ;;
    --out) out=$2 ;;
    *) echo "two_hosts: unknown option $1; write --rate, --steps, --repeats or --out" >&2; exit 2 ;;
  esac
  shift 2
done
((EUID == 0)) || { echo "two_hosts: needs root to make network namespaces" >&2; exit 1; }
millrace=$PWD/build/release/bin/millrace
[[ -x $millrace ]] || { echo "two_hosts: build first: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
source bench/install_packages.sh
install_packages two_hosts iproute2 openmpi-bin

id=mr$$
work=$(mktemp -d)
cleanup() {
  ip netns del "${id}a" 2>/dev/null || true
  ip netns del "${id}b" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

ip netns add "${id}a"
ip netns add "${id}b"
ip link add "${id}a" netns "${id}a" type veth peer name "${id}b" netns "${id}b"
for side in a b; do
  [[ $side == a ]] && address=10.77.0.1 || address=10.77.0.2
  ip -n "$id$side" addr add $address/24 dev "$id$side"
  ip -n "$id$side" link set "$id$side" up
  ip -n "$id$side" link set lo up
  tc -n "$id$side" qdisc add dev "$id$side" root tbf rate "$rate" burst 256kb latency 50ms
done

# Open MPI starts its daemon on the second host through this; a hostname of its own keeps shared memory out of play.
cat > "$work/agent" <<AGENT
#!/bin/sh
shift
exec ip netns exec ${id}b unshare --uts sh -c "hostname host-b; exec taskset -c 1 sh -c '\$*'"
AGENT
chmod +x "$work/agent"
printf '10.77.0.1 slots=1\n10.77.0.2 slots=1\n' > "$work/hosts"

run() { # name, then settings
  local name=$1
  shift
  local sets=()
  for setting in "$@"; do sets+=(--set "$setting"); done
  ip netns exec "${id}a" unshare --uts sh -c 'hostname host-a; exec "$@"' sh taskset -c 0 mpirun --allow-run-as-root \
    -n 2 --hostfile "$work/hosts" --bind-to none --mca plm_rsh_agent "$work/agent" --mca btl self,tcp --mca pml ob1 \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
    -x OMP_NUM_THREADS=1 -x HOME \
    "$millrace" train jobs/alexnet.yaml --set threads=1 --set batch=128 --set steps="$steps" "${sets[@]}" \
    --out "$work/$name" --overwrite > "$work/$name.log" 2>&1 || { tail -5 "$work/$name.log" >&2; exit 1; }
  python3 - "$work/$name/summary.json" "$name" "$work/results.jsonl" <<'PYTHON'
import json, sys
summary = json.load(open(sys.argv[1]))
# The mean, not the median: without a flush steps end in bursts. The first two warm up.
metrics = [json.loads(line) for line in open(sys.argv[1].replace("summary.json", "metrics.jsonl"))]
seconds = [m["seconds"] for m in metrics if "seconds" in m][2:]
step_ms = 1e3 * sum(seconds) / len(seconds)
line = {"name": sys.argv[2], "samples_per_s": summary["batch"] / step_ms * 1e3, "step_ms": step_ms,
        "bytes_per_step": summary["bytes_sent"] / summary["steps"], "comm_hidden_share": summary["comm_hidden_share"],
        "busy": [w["busy_s"] for w in summary["workers"]], "bubble_share": summary["bubble_share"]}
open(sys.argv[3], "a").write(json.dumps(line) + "\n")
print(f"{line['name']:<28} {line['samples_per_s']:7.1f} samples/s  step {step_ms:7.0f} ms  "
      f"{line['bytes_per_step'] / 2**20:7.1f} MiB a step  idle {100 * line['bubble_share']:.0f}%", flush=True)
PYTHON
}

cut="parallel.cuts=[classifier.0]"
for ((i = 0; i < repeats; ++i)); do
  run data-parallel parallel.mode=dp parallel.placement=0:0,1:0
  run ssp-conv-both-fc-shared "parallel.cuts=[classifier.0,classifier.3]" parallel.mode=ssp \
    parallel.placement=0:0,1:0.1:0.0:0
  run ssp-conv-both-fc-one "$cut" parallel.mode=ssp parallel.placement=0:0,1:0.1:0
  run ssp-conv-shares-fc-one "$cut" parallel.mode=ssp parallel.placement=0:0,1:0.1:0 parallel.shares=75:53.1
  run ssp-conv-fc "$cut" parallel.mode=ssp parallel.placement=0:0.1:0
done

PYTHONPATH=bench python3 - "$work/results.jsonl" "$out" "$rate" "bench/two_hosts.sh --rate $rate --steps $steps --repeats $repeats" <<'PYTHON'
import collections, json, statistics, sys
import bench_record
runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    run = json.loads(line)
    runs[run["name"]].append(run)
median = {name: statistics.median(r["samples_per_s"] for r in all) for name, all in runs.items()}
for name, speed in median.items():
    print(f"{name:<28} median {speed:6.1f} samples/s, {speed / median['data-parallel']:.2f}x data parallel")
if sys.argv[2]:
    figures = {"rate": sys.argv[3], "median_samples_per_s": median, "runs": runs}
    bench_record.write(sys.argv[2], "two_hosts", figures, sys.argv[4])
PYTHON
