package org.rackweave.spark;

import java.lang.reflect.Field;
import org.apache.spark.SparkConf;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.broadcast.BroadcastFactory;
import org.apache.spark.broadcast.BroadcastManager;
import scala.reflect.ClassTag;

/**
 * Makes broadcast variables as Spark does, and casts their blocks before anybody can ask for them. Only the driver makes
 * such variables, so an executor's factory stays as it is.
 */
final class CastBroadcastFactory implements BroadcastFactory {
  private final BroadcastFactory spark;
  private final Caster caster;

  private CastBroadcastFactory(BroadcastFactory spark, Caster caster) {
    this.spark = spark;
    this.caster = caster;
  }

  /** Takes the place of {@code manager}'s factory, for which Spark has no setting. */
  static void install(BroadcastManager manager, Caster caster) throws ReflectiveOperationException {
    Field field = BroadcastManager.class.getDeclaredField("broadcastFactory");
    field.setAccessible(true);
    field.set(manager, new CastBroadcastFactory((BroadcastFactory) field.get(manager), caster));
  }

  @Override
  public void initialize(boolean isDriver, SparkConf conf) {
    spark.initialize(isDriver, conf);
  }

  @Override
  public <T> Broadcast<T> newBroadcast(T value, boolean isLocal, long id, boolean serializedOnly, ClassTag<T> type) {
    Broadcast<T> broadcast = spark.newBroadcast(value, isLocal, id, serializedOnly, type);
    if (!isLocal) {
      caster.offer(id);
    }
    return broadcast;
  }

  @Override
  public void unbroadcast(long id, boolean removeFromDriver, boolean blocking) {
    spark.unbroadcast(id, removeFromDriver, blocking);
  }

  @Override
  public void stop() {
    spark.stop();
  }
}
