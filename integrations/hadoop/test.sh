#!/usr/bin/env bash
# Builds the integration, and compares jobs whose reducers take their input through Rackweave with the same jobs on plain
# Hadoop, byte by byte: in the local runner and on a mini cluster, also while processes are killed.
#
#   integrations/hadoop/test.sh [local|cluster]     (default: both)
#
# Needs Java 11 or later and Maven, which fetches Hadoop's jars (130 MB, once). RACKWEAVE: the program to use (default: the
# one in target/debug, which is built if cargo is there).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
parts=${1:-local cluster}
for tool in java mvn; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: needs java and maven"
    exit 0
  fi
done
rackweave=${RACKWEAVE:-}
if [[ -z $rackweave ]]; then
  (cd "$here/../.." && cargo build --quiet --locked -p rackweave)
  rackweave=$(cd "$here/../.." && pwd)/target/debug/rackweave
fi

work=$(mktemp -d)
switch=
controller=
pod=
cleanup() {
  for process in $switch $controller $pod; do kill "$process" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

echo "== build"
(cd "$here" && mvn -q -B package dependency:build-classpath -Dmdep.outputFile=target/classpath) >"$work/build" 2>&1 || {
  cat "$work/build"
  echo "FAILED: the build"
  exit 1
}
classpath="$here/target/classes:$here/target/test-classes:$(<"$here/target/classpath")"

# Text whose words are drawn log-uniformly from 20,000, so that a few are frequent and many are rare.
mkdir "$work/text"
awk 'BEGIN {
  x = 42; n = 20000
  for (line = 0; line < 30000; line++) {
    text = ""
    for (i = 0; i < 10; i++) {
      x = (x * 16807) % 2147483647
      text = text sprintf("w%x ", int(exp(x / 2147483647 * log(n))))
    }
    print text
  }
}' >"$work/text/words.txt"

# Stands in front of the program, and does to it what the file `fault` says.
cat >"$work/rackweave" <<END
#!/bin/sh
dir='$work'
real='$rackweave'
END
cat >>"$work/rackweave" <<'END'
fault=$(cat "$dir/fault")
once() { mkdir "$dir/$fault.$PPID.once" 2>/dev/null; }
# Runs the program and kills it after $1 seconds.
killed() {
  after=$1
  shift
  exec 3<&0
  "$real" "$@" <&3 &
  sleep "$after"
  kill -9 $!
  kill -9 $$
}
case "$fault $2" in
  # The others wait, so that the killed worker has joined a job that is not over.
  "worker-once worker") if once; then killed 2 "$@"; else sleep 4; fi ;;
  "worker-always worker") killed 1 "$@" ;;
  "master-once master") if once; then killed 1 "$@"; fi ;;
  "master-always master") killed 1 "$@" ;;
  "master-once worker" | "master-always worker") sleep 2 ;;
  # A worker that loses a part of its input but not its end, and reports success.
  "cut worker") { sed -n 1,100p; echo '\.'; } | "$real" "$@"; exit ;;
  # The whole reduce task ends, in the middle of the upload.
  "reducer-once master") if mkdir "$dir/reducer.once" 2>/dev/null; then (sleep 1; kill -9 $PPID) & fi ;;
  "reducer-once worker") sleep 2 ;;
  # The output of a map task disappears from its node after the task has succeeded.
  "output-lost master")
    if mkdir "$dir/output.lost" 2>/dev/null; then
      id=$(echo "$*" | sed -E 's/.*attempt_([0-9]+_[0-9]+)_r_.*/\1/')
      find "$dir/cluster" -path "*/application_$id/output/attempt_${id}_m_000000_*" -prune -exec rm -r {} +
    fi
    ;;
esac
exec "$real" "$@"
END
chmod +x "$work/rackweave"
echo none >"$work/fault"

run() {
  CLASSPATH=$classpath java -Xmx700m --add-opens=java.base/java.lang=ALL-UNNAMED org.rackweave.hadoop.RunJobs "$@" \
    rackweave.command="$work/rackweave" test.fault.file="$work/fault" "${jobs[@]}" >"$work/out" 2>"$work/log" || {
    tail -n 40 "$work/log"
    cat "$work/out"
    echo "FAILED: a job did not end as expected"
    exit 1
  }
  grep -E '^[a-z0-9-]+: ' "$work/out" | sed -E 's/ (MAP|COMBINE|SPILLED|FAILED|CPU|GC)[A-Z_]*=[0-9]+//g'
}

jobs=()
# job NAME SETTING...: a job whose output goes to a folder of its name.
job() {
  local name=$1
  shift
  jobs+=(-- "$name" "$text" "$work/results/$name" "$@")
}
text=$work/text

equal() {
  local expected=$1 name part
  shift
  for name; do
    for part in "$work/results/$expected"/part-*; do
      cmp "$part" "$work/results/$name/${part##*/}"
    done
    [[ $(ls "$work/results/$name") == $(ls "$work/results/$expected") ]]
  done
  echo "equal to $expected, $(cat "$work/results/$expected"/part-* | wc -l) lines: $*"
}

# counter JOB NAME VALUE
counter() {
  grep -qE "^$1: .* $2=$3( |\$)" "$work/out" || {
    echo "FAILED: $1 has not $2=$3"
    exit 1
  }
}

says() {
  grep -qF "$1" "$work/log" "$work/out" || {
    echo "FAILED: nothing says: $1"
    exit 1
  }
}

dictionary=/usr/share/dictd/gcide.dict.dz
on=test.rackweave=true
strict=rackweave.fallback=false
split=mapreduce.input.fileinputformat.split.maxsize=300000

if [[ $parts == *local* ]]; then
  echo "== local runner"
  "$rackweave" switch --listen 127.0.0.1:43100 --hosts 8 --program reduce --slots 16384 --share 100 >"$work/switch.log" 2>&1 &
  switch=$!
  jobs=()
  overlay=(rackweave.overlay=127.0.0.1:43100 "rackweave.master.arguments=--switch 0 --require-switch")
  job plain $split
  job aggregated $split $on $strict
  job switched $split $on $strict "${overlay[@]}"
  # A pod of eight servers: its controller assigns numbers and slots.
  printf '[fabric]\ntopology = "rackless"\ntors = [4, 2, 2]\nuplinks = 1\ncircuits = [0, 0, 0, 0, 1, 1, 2, 2]\n' >"$work/fabric.toml"
  printf 'tor = [{ ports = 4, uplinks = 1, slots = 16384 }, { ports = 2 }, { ports = 2 }]\n' >"$work/pod.toml"
  "$rackweave" pod control --pod "$work/pod.toml" --database "$work/pod.redb" --listen 127.0.0.1:43301 --agents 127.0.0.1:43302 >"$work/pod.log" 2>&1 &
  controller=$!
  "$rackweave" switch --listen 127.0.0.1:43200 --fabric "$work/fabric.toml" --program reduce --aggregate-at 0 --slots 16384 --share 100 --pod 127.0.0.1:43302 >"$work/pod-switch.log" 2>&1 &
  pod=$!
  job pod $split $on $strict rackweave.overlay=127.0.0.1:43200 "rackweave.master.arguments=--pod http://127.0.0.1:43301 --pod-name hadoop"
  job compressed $split $on $strict mapreduce.map.output.compress=true
  job reducers-plain $split mapreduce.job.reduces=3
  job reducers $split mapreduce.job.reduces=3 $on $strict
  job bytes-plain $split test.job=bytes
  job bytes $split test.job=bytes $on $strict
  job bytes-switched $split test.job=bytes $on $strict "${overlay[@]}"
  job old-plain mapreduce.job.maps=4 test.job=old
  job old mapreduce.job.maps=4 test.job=old $on $strict
  job no-combiner $split $on test.combiner=false
  job worker-killed $split $on $strict test.fault=worker-once
  job workers-killed $split $on test.fault=worker-always
  job master-killed $split $on $strict test.fault=master-once
  job masters-killed $split $on test.fault=master-always
  job masters-killed-strict $split $on $strict test.fault=master-always test.fails=true
  job cut $split $on test.fault=cut
  if [[ -e $dictionary ]]; then
    text=$work/dictionary
    mkdir "$text"
    zcat <"$dictionary" >"$text/gcide.txt"
    seven=(mapreduce.input.fileinputformat.split.maxsize=5707475 rackweave.local.workers=7)
    job dictionary-plain "${seven[@]}"
    job dictionary "${seven[@]}" $on $strict
    job dictionary-switched "${seven[@]}" $on $strict "${overlay[@]}"
    text=$work/text
  else
    echo "skipped: the dictionary, which is in Debian's package dict-gcide"
  fi
  run local "$work/local"
  equal plain aggregated switched pod compressed no-combiner worker-killed workers-killed master-killed masters-killed cut
  equal reducers-plain reducers
  equal bytes-plain bytes bytes-switched
  equal old-plain old
  [[ ! -e $dictionary ]] || equal dictionary-plain dictionary dictionary-switched
  counter aggregated rackweave.WORKERS 3
  counter switched rackweave.SLOTS 16384
  counter pod rackweave.SLOTS 16384
  grep -q 'uploads, 16384 slots' "$work/pod.log" || { echo "FAILED: the controller has granted nothing"; exit 1; }
  for name in no-combiner workers-killed masters-killed cut; do counter $name rackweave.FALLBACKS 1; done
  says "this job is not aggregated: the job has no combiner"
  says "aggregation failed: the worker"
  says "aggregation failed: the master was killed by signal 9"
  says "digests differ"
fi

if [[ $parts == *cluster* ]]; then
  echo "== mini cluster of 3 nodes"
  jobs=()
  more=(mapreduce.input.fileinputformat.split.maxsize=250000)
  trace=(mapreduce.job.map.output.collector.class=org.rackweave.hadoop.TracingCollector test.collector.trace="$work/trace")
  job plain "${more[@]}" mapreduce.job.reduces=2
  job aggregated "${more[@]}" mapreduce.job.reduces=2 $on $strict
  # The first attempt of a map task ends after its output is complete.
  job map-killed "${more[@]}" mapreduce.job.reduces=2 $on $strict "${trace[@]}" test.collector.kill=true mapreduce.map.speculative=false
  job worker-killed "${more[@]}" mapreduce.job.reduces=2 $on $strict test.fault=worker-once
  job reducer-killed "${more[@]}" mapreduce.job.reduces=2 $on $strict test.fault=reducer-once
  job output-lost "${more[@]}" mapreduce.job.reduces=2 $on $strict test.fault=output-lost
  job masters-killed "${more[@]}" mapreduce.job.reduces=2 $on test.fault=master-always
  job masters-killed-strict "${more[@]}" $on $strict test.fault=master-always test.fails=true mapreduce.reduce.maxattempts=1
  run yarn:3 "$work/cluster" mapreduce.map.memory.mb=512 mapreduce.reduce.memory.mb=512 \
    yarn.app.mapreduce.am.resource.mb=512 yarn.minicluster.yarn.nodemanager.resource.memory-mb=1024 \
    rackweave.service.ports=43200-43230
  equal plain aggregated map-killed worker-killed reducer-killed output-lost masters-killed
  counter masters-killed rackweave.FALLBACKS 2
  counter map-killed NUM_FAILED_MAPS 1
  counter reducer-killed NUM_FAILED_REDUCES 1
  counter output-lost NUM_FAILED_MAPS 1
  says "aggregation failed: the master was killed by signal 9"
  # Why a collector of map output cannot carry the upload: its tasks do not run at the same time, and two attempts of one task
  # both complete their output.
  awk '
    $1 == "begin" { open++; if (open > most) most = open; task[substr($2, 1, length($2) - 2)] }
    $1 == "complete" { open--; complete[substr($2, 1, length($2) - 2)]++ }
    END {
      for (t in task) tasks++
      for (t in complete) if (complete[t] > 1) twice++
      printf "collectors: %d map tasks, at most %d of them at the same time; %d completed their output twice\n", tasks, most, twice
      exit !(most < tasks && twice == 1)
    }' <(sort -k3n "$work/trace")
fi
echo "all equal"
