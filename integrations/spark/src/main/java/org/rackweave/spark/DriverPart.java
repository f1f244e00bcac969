package org.rackweave.spark;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import java.io.IOException;
import java.security.SecureRandom;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The plugin at the driver: makes the key, knows the receivers, casts. */
final class DriverPart implements DriverPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(DriverPart.class);
  private static final int KEY_BYTES = 32;

  /** The last application's, for tests. */
  static volatile Caster last;

  private volatile Caster caster;

  @Override
  public Map<String, String> init(SparkContext context, PluginContext plugin) {
    SparkEnv env = context.env();
    if (env.conf().getBoolean("spark.io.encryption.enabled", false)) {
      LOG.warn("spark.io.encryption.enabled is set, so nothing is cast: receivers write files that are not encrypted.");
      return Map.of();
    }
    Caster made = new Caster(env.conf(), env.blockManager(), newKey());
    try {
      CastBroadcastFactory.install(env.broadcastManager(), made);
    } catch (ReflectiveOperationException | RuntimeException other) {
      LOG.warn("This version of Spark is unknown, so nothing is cast.", other);
      return Map.of();
    }
    context.addSparkListener(
        new SparkListener() {
          @Override
          public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
            made.remove(event.executorId(), null);
          }
        });
    caster = made;
    last = made;
    return Map.of();
  }

  private static String newKey() {
    byte[] bytes = new byte[KEY_BYTES];
    new SecureRandom().nextBytes(bytes);
    StringBuilder text = new StringBuilder();
    for (byte b : bytes) {
      text.append(String.format("%02x", b));
    }
    return text.toString();
  }

  @Override
  public void registerMetrics(String application, PluginContext plugin) {
    Caster of = caster;
    if (of != null) {
      MetricRegistry metrics = plugin.metricRegistry();
      metrics.register("receivers", (Gauge<Integer>) of::receivers);
      metrics.register("values", (Gauge<Long>) of.values::get);
      metrics.register("bytes", (Gauge<Long>) of.bytes::get);
      metrics.register("deliveries", (Gauge<Long>) of.deliveries::get);
      metrics.register("failures", (Gauge<Long>) of.failures::get);
    }
  }

  @Override
  public Object receive(Object any) throws IOException {
    Message message = (Message) any;
    Caster to = caster;
    if (to == null) {
      return message.kind == Message.Kind.KEY ? "" : Boolean.FALSE;
    }
    switch (message.kind) {
      case KEY:
        return to.key();
      case LISTENING:
        to.add(message.executor, message.text, message.port);
        return Boolean.TRUE;
      case GONE:
        to.remove(message.executor, message.text);
        return Boolean.TRUE;
      case UNDER_WAY:
        return to.underWay(message.broadcast);
      case STORED:
        return to.stored(message.executor, message.broadcast);
      default:
        return Boolean.FALSE;
    }
  }
}
