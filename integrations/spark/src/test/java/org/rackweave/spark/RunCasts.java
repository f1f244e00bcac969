package org.rackweave.spark;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.mllib.clustering.LDA;
import org.apache.spark.mllib.clustering.OnlineLDAOptimizer;
import org.apache.spark.mllib.linalg.Vector;
import org.apache.spark.mllib.linalg.Vectors;
import scala.Tuple2;

/** Applications on a cluster of three executors, each of which ends with an error if something is not as expected. */
public final class RunCasts {
  private static final int EXECUTORS = 3;
  private static final int LARGE = 20_000_000;
  private static final int SMALL = 100_000;

  private final JavaSparkContext spark;

  private RunCasts(JavaSparkContext spark) {
    this.spark = spark;
  }

  /** {@code NAME SETTING=VALUE...}: runs the application of that name. */
  public static void main(String[] arguments) throws Exception {
    String name = arguments[0];
    SparkConf conf = new SparkConf().setAppName(name).setMaster("local-cluster[" + EXECUTORS + ",1,1024]");
    for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
      String[] setting = argument.split("=", 2);
      conf.set(setting[0], setting[1]);
    }
    DriverPart.last = null;
    try (JavaSparkContext spark = new JavaSparkContext(conf)) {
      RunCasts run = new RunCasts(spark);
      switch (name) {
        case "values":
          run.values();
          break;
        case "killed":
          run.killed();
          break;
        case "killed-in-cast":
          run.killedInCast();
          break;
        case "without":
          run.without();
          break;
        case "halt":
          run.awaitReceivers();
          check(run.seen(spark.broadcast(random(LARGE)), LARGE), "", EXECUTORS);
          Runtime.getRuntime().halt(9);
          break;
        case "lda":
          run.lda();
          break;
        case "compare":
          run.compare();
          break;
        default:
          throw new IllegalArgumentException(name);
      }
    }
    System.out.println("ok: " + name);
  }

  /** What one task found at its executor. */
  private static final class Seen implements Serializable {
    private static final long serialVersionUID = 1;
    final String executor = SparkEnv.get().executorId();
    final long process = ProcessHandle.current().pid();
    boolean before;
    String hash;
  }

  /** Uses a value at the executors; the first use of each counts. */
  private Map<String, Seen> seen(Broadcast<byte[]> value, int length) {
    long id = value.id();
    Map<String, Seen> first = new TreeMap<>();
    List<Seen> all =
        spark
            .parallelize(new ArrayList<>(java.util.Collections.nCopies(24, 0)), 24)
            .map(
                nothing -> {
                  Seen seen = new Seen();
                  seen.before = new Blocks(SparkEnv.get().blockManager(), id).exist();
                  seen.hash = value.value().length == length ? hash(value.value()) : "another length";
                  Thread.sleep(150);
                  return seen;
                })
            .collect();
    for (Seen seen : all) {
      first.merge(
          seen.executor,
          seen,
          (a, b) -> {
            if (!a.hash.equals(b.hash)) {
              throw new IllegalStateException("two values at " + a.executor);
            }
            return a.before ? b : a;
          });
    }
    System.out.println(
        length + " bytes: " + first.size() + " executors, there before: " + first.values().stream().filter(s -> s.before).count());
    return first;
  }

  private static String hash(byte[] bytes) throws Exception {
    return new java.math.BigInteger(1, MessageDigest.getInstance("SHA-256").digest(bytes)).toString(16);
  }

  private static byte[] random(int length) {
    byte[] bytes = new byte[length];
    new Random(length).nextBytes(bytes);
    return bytes;
  }

  private static void require(boolean what, String sentence) {
    if (!what) {
      throw new IllegalStateException(sentence);
    }
  }

  /** All have the value of {@link #random}, and {@code before} of them had it before they asked for it. */
  private static void check(Map<String, Seen> seen, String expected, long before) throws Exception {
    require(seen.size() >= EXECUTORS - 1, "tasks ran at " + seen.keySet());
    Set<String> hashes = new HashSet<>();
    seen.values().forEach(one -> hashes.add(one.hash));
    require(hashes.size() == 1, "values differ: " + hashes);
    require(expected.isEmpty() || hashes.contains(expected), "another value than the driver's");
    long had = seen.values().stream().filter(one -> one.before).count();
    require(before < 0 || had == before, had + " had it before, expected " + before);
  }

  private static void await(String what, BooleanSupplier condition) throws InterruptedException {
    for (int tenths = 0; !condition.getAsBoolean(); tenths++) {
      require(tenths < 1200, "in two minutes not: " + what);
      Thread.sleep(100);
    }
  }

  private void awaitReceivers() throws InterruptedException {
    await("three receivers", () -> DriverPart.last.receivers() == EXECUTORS);
  }

  /** Values above and below the threshold. */
  private void values() throws Exception {
    awaitReceivers();
    Caster caster = DriverPart.last;
    byte[] large = random(LARGE);
    byte[] small = random(SMALL);
    Broadcast<byte[]> above = spark.broadcast(large);
    require(caster.values.get() == 1 && caster.deliveries.get() == EXECUTORS, "the large value was not cast to all");
    check(seen(above, LARGE), hash(large), EXECUTORS);
    Broadcast<byte[]> below = spark.broadcast(small);
    check(seen(below, SMALL), hash(small), -1);
    require(caster.values.get() == 1, "the small value was cast");
    // Compressed it is small.
    check(seen(spark.broadcast(new byte[LARGE]), LARGE), hash(new byte[LARGE]), -1);
    require(caster.values.get() == 1, "a value was cast that is small once it is compressed");
    above.unpersist(true);
    check(seen(above, LARGE), hash(large), 0);
    above.destroy(true);
    long id = above.id();
    List<Boolean> left =
        spark.parallelize(List.of(1, 2, 3, 4, 5, 6, 7, 8, 9), 9).map(
            nothing -> {
              Thread.sleep(150);
              return new Blocks(SparkEnv.get().blockManager(), id).exist();
            }).collect();
    require(!left.contains(true), "blocks of a destroyed value are left");
    require(caster.failures.get() == 0, "a cast failed");
  }

  /** An executor dies between two casts; its successor comes late. */
  private void killed() throws Exception {
    awaitReceivers();
    Caster caster = DriverPart.last;
    byte[] large = random(LARGE);
    Broadcast<byte[]> first = spark.broadcast(large);
    Map<String, Seen> seen = seen(first, LARGE);
    check(seen, hash(large), EXECUTORS);
    Seen victim = seen.values().iterator().next();
    ProcessHandle.of(victim.process).ifPresent(ProcessHandle::destroyForcibly);
    byte[] other = random(LARGE + 1);
    Broadcast<byte[]> second = spark.broadcast(other);
    check(seen(second, LARGE + 1), hash(other), -1);
    awaitReceivers();
    // The successor was not there for the first two.
    Map<String, Seen> late = seen(first, LARGE);
    check(late, hash(large), -1);
    require(late.values().stream().anyMatch(one -> !seen.containsKey(one.executor)), "no task ran at the successor");
    byte[] third = random(LARGE + 2);
    check(seen(spark.broadcast(third), LARGE + 2), hash(third), EXECUTORS);
    require(caster.deliveries.get() >= 2 * EXECUTORS + EXECUTORS - 1, "only " + caster.deliveries.get() + " deliveries");
  }

  /** An executor dies while it receives, which takes some seconds by --rate. */
  private void killedInCast() throws Exception {
    awaitReceivers();
    long victim = seen(spark.broadcast(random(SMALL)), SMALL).values().iterator().next().process;
    Thread killer =
        new Thread(
            () -> {
              try {
                Thread.sleep(1000);
              } catch (InterruptedException never) {
                return;
              }
              ProcessHandle.of(victim).ifPresent(ProcessHandle::destroyForcibly);
            });
    killer.start();
    byte[] large = random(LARGE);
    Broadcast<byte[]> value = spark.broadcast(large);
    killer.join();
    require(DriverPart.last.deliveries.get() == EXECUTORS - 1, DriverPart.last.deliveries + " deliveries");
    check(seen(value, LARGE), hash(large), -1);
  }

  /** Nothing can be cast, and everything works. */
  private void without() throws Exception {
    Caster caster = DriverPart.last;
    for (int n = 0; n < 3; n++) {
      // Receivers may come, and only senders fail.
      Thread.sleep(2000);
      byte[] large = random(LARGE + n);
      check(seen(spark.broadcast(large), LARGE + n), hash(large), -1);
    }
    require(caster == null || caster.values.get() == 0, "something was cast");
  }

  /** Prints how long values of {@code test.bytes} take until every executor has used them, {@code test.rounds} times. */
  private void compare() throws Exception {
    int bytes = spark.getConf().getInt("test.bytes", LARGE);
    if (DriverPart.last != null) {
      awaitReceivers();
    }
    await("three executors", () -> spark.sc().statusTracker().getExecutorInfos().length == EXECUTORS + 1);
    seen(spark.broadcast(random(SMALL)), SMALL);
    for (int round = 0; round < spark.getConf().getInt("test.rounds", 1); round++) {
      byte[] large = random(bytes + round);
      long start = System.nanoTime();
      Broadcast<byte[]> value = spark.broadcast(large);
      long cast = System.nanoTime();
      Set<String> executors = new HashSet<>(used(value));
      long end = System.nanoTime();
      require(executors.size() == EXECUTORS, "only " + executors + " used the value");
      check(seen(value, large.length), hash(large), -1);
      System.out.printf("round: %.3f %.3f%n", (cast - start) / 1e9, (end - start) / 1e9);
      value.destroy(true);
    }
    if (DriverPart.last != null) {
      require(DriverPart.last.failures.get() == 0, "a cast failed");
    }
  }

  /** One task at each executor uses the value. */
  private List<String> used(Broadcast<byte[]> value) {
    return spark
        .parallelize(List.of(1, 2, 3), EXECUTORS)
        .map(
            nothing -> {
              require(value.value().length > 0, "no value");
              return SparkEnv.get().executorId();
            })
        .collect();
  }

  /** A model whose hash is printed. With two partitions sums do not depend on which one is ready first. */
  private void lda() throws Exception {
    int words = 2000;
    Random random = new Random(7);
    List<Tuple2<Long, Vector>> documents = new ArrayList<>();
    for (long document = 0; document < 200; document++) {
      double[] counts = new double[words];
      for (int n = 0; n < 100; n++) {
        counts[(int) (((document % 5) * 400 + random.nextInt(600)) % words)]++;
      }
      documents.add(new Tuple2<>(document, Vectors.dense(counts)));
    }
    if (DriverPart.last != null) {
      awaitReceivers();
    }
    JavaPairRDD<Long, Vector> corpus = spark.parallelizePairs(documents, 2).cache();
    double[] topics =
        new LDA()
            .setK(10)
            .setSeed(3)
            .setMaxIterations(20)
            .setOptimizer(new OnlineLDAOptimizer().setMiniBatchFraction(0.5))
            .run(corpus)
            .topicsMatrix()
            .toArray();
    ByteBuffer bytes = ByteBuffer.allocate(topics.length * Double.BYTES);
    bytes.asDoubleBuffer().put(topics);
    System.out.println("model: " + hash(bytes.array()));
    if (DriverPart.last != null) {
      System.out.println("cast: " + DriverPart.last.values.get() + " values");
      require(DriverPart.last.values.get() >= 20, "the models were not cast");
    }
  }
}
