package org.rackweave.spark;

import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/** What {@code spark.plugins} names: large broadcast variables reach the executors by {@code rackweave cast}. */
public final class RackweavePlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    return new DriverPart();
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new ExecutorPart();
  }
}
