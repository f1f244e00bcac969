#!/usr/bin/env bash
# Builds the integration, and runs applications on a cluster of three executors, whose large broadcast values go through
# Rackweave, also while executors are killed and where the program is missing or fails.
#
#   integrations/spark/test.sh [VERSIONS [RUNS]]     (default: "3 4", both versions of Spark with the same classes; all runs)
#
# Needs Java 17 or later and Maven, which fetches Spark's jars (300 MB for each version, once). RACKWEAVE: the program to use
# (default: the one in target/debug, which is built if cargo is there).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
versions=${1:-3 4}
only=${2:-}
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
cleanup() {
  if [[ -n ${KEEP:-} ]]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap cleanup EXIT

quietly() {
  "$@" >"$work/build" 2>&1 || {
    cat "$work/build"
    echo "FAILED: $*"
    exit 1
  }
}

echo "== build"
cd "$here"
# The classes for Spark 3.5 serve Spark 4.0, too. That they compile with both is checked before.
quietly mvn -q -B clean test-compile -Pspark4 dependency:build-classpath -Dmdep.outputFile="$work/classpath4"
quietly mvn -q -B clean package dependency:build-classpath -Dmdep.outputFile="$work/classpath3"
for version in $versions; do
  mkdir -p "$work/home$version/jars"
  tr ':' '\n' <"$work/classpath$version" | while read -r jar; do ln -s "$jar" "$work/home$version/jars/"; done
done

# Stands in front of the program, so that a test can take it away from senders. Its name is in the command of each receiver.
cat >"$work/rackweave" <<END
#!/bin/sh
exec '$rackweave' "\$@"
END
cat >"$work/no-sender" <<END
#!/bin/sh
[ "\$2" != send ] || { echo "error: there is no network" >&2; exit 1; }
exec '$rackweave' "\$@"
END
cat >"$work/endless-sender" <<END
#!/bin/sh
[ "\$2" != send ] || exec sleep 60
exec '$rackweave' "\$@"
END
chmod +x "$work/rackweave" "$work/no-sender" "$work/endless-sender"

opens=()
for package in java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent \
  java.util.concurrent.atomic jdk.internal.ref; do
  opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
done
for package in sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar; do
  opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
done

plugin=spark.plugins=org.rackweave.spark.RackweavePlugin
# run NAME APPLICATION SETTING=VALUE...
run() {
  local name=$1 application=$2
  shift 2
  skipped=
  if [[ -n $only && " $only " != *" $name "* ]]; then
    skipped=1
    return
  fi
  rm -rf "$work/local"
  mkdir "$work/local"
  SPARK_HOME=$work/home$version SPARK_SCALA_VERSION=$scala SPARK_LOCAL_IP=127.0.0.1 SPARK_LOCAL_DIRS=$work/local \
    java -Xmx700m "${opens[@]}" -cp "$here/target/classes:$here/target/test-classes:$(<"$work/classpath$version")" \
    org.rackweave.spark.RunCasts "$application" \
    spark.executor.extraClassPath="$here/target/classes:$here/target/test-classes" spark.executor.memory=600m \
    spark.ui.enabled=false spark.rackweave.command="$work/rackweave" spark.rackweave.receivers.perHost=3 \
    spark.rackweave.broadcast.minBytes=1m "$@" >"$work/out" 2>"$work/log" && code=0 || code=$?
  if ! grep -q "^ok: $application" "$work/out" && [[ $code != 9 ]]; then
    tail -n 60 "$work/log"
    cat "$work/out"
    echo "FAILED: $name, exit code $code"
    exit 1
  fi
  # Nothing is left a little later, no matter how the application has ended.
  for ((tenths = 0; ; tenths++)); do
    left=$(
      find "$work/local" -path '*rackweave*' 2>/dev/null
      ps -eo args | grep -F "$work/" | grep -F "cast receive" | grep -vF grep
    ) || true
    [[ -n $left ]] || break
    if ((tenths == 200)); then
      printf '%s\n' "$left"
      echo "FAILED: $name leaves something"
      exit 1
    fi
    sleep 0.1
  done
  echo "$name: as expected; $(grep -E '^(model|cast): ' "$work/out" | tr '\n' ' ')"
}

# warns NUMBER SENTENCE
warns() {
  [[ -z $skipped ]] || return 0
  if [[ $(grep -cE "WARN (Caster|DriverPart)" "$work/log") != "$1" ]] || ! grep -qF "$2" "$work/log"; then
    cat "$work/log"
    echo "FAILED: there are not $1 warnings, or none says: $2"
    exit 1
  fi
}

for version in $versions; do
  echo "== Spark $version"
  scala=2.$((version == 3 ? 12 : 13))
  run values values $plugin
  run executor-killed killed $plugin
  run killed-while-receiving killed-in-cast $plugin "spark.rackweave.send.arguments=--rate 40Mbps"
  run driver-killed halt $plugin
  run no-program without $plugin spark.rackweave.command="$work/none"
  warns 1 "does not receive casts"
  run no-sender without $plugin spark.rackweave.command="$work/no-sender"
  warns 1 "there is no network"
  run endless-sender without $plugin spark.rackweave.command="$work/endless-sender" spark.rackweave.broadcast.timeout=1s
  warns 1 "was too late"
  run model-without-plugin lda
  model=$(grep ^model "$work/out") || true
  run model lda $plugin spark.rackweave.broadcast.minBytes=10k
  [[ -n $skipped || $model == $(grep ^model "$work/out") ]] || { echo "FAILED: the models differ"; exit 1; }
done
echo "all as expected"
