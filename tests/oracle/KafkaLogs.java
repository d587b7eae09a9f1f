import java.io.File;
import java.nio.file.Files;
import java.security.MessageDigest;
import java.util.ArrayDeque;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** What it takes to have a log of Kafka's outside of a broker such that all it does depends on its input alone. */
final class KafkaLogs {
  static final int DAY_MS = 86_400_000;

  /** A clock that stands still. */
  record StoppedClock(long nowMs) implements Time {
    @Override
    public long milliseconds() {
      return nowMs;
    }

    @Override
    public long nanoseconds() {
      return TimeUnit.MILLISECONDS.toNanos(nowMs);
    }

    @Override
    public void sleep(long ms) {
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
      throw new UnsupportedOperationException("a stopped clock waits for nobody");
    }
  }

  /** Keeps the one-time tasks until asked to run them; periodic ones never run. */
  static final class Tasks implements Scheduler {
    final ArrayDeque<Map.Entry<String, Runnable>> queue = new ArrayDeque<>();

    static final class Pending extends FutureTask<Void> implements ScheduledFuture<Void> {
      Pending() {
        super(() -> null);
      }

      @Override
      public long getDelay(TimeUnit unit) {
        return 0;
      }

      @Override
      public int compareTo(Delayed other) {
        return 0;
      }
    }

    @Override
    public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
      if (periodMs < 0) {
        queue.add(Map.entry(name, task));
      }
      return new Pending();
    }

    void run(boolean keepDeleted) {
      while (!queue.isEmpty()) {
        Map.Entry<String, Runnable> task = queue.poll();
        if (!keepDeleted || !task.getKey().startsWith("delete-")) {
          task.getValue().run();
        }
      }
    }

    @Override
    public void startup() {
    }

    @Override
    public void shutdown() {
    }

    @Override
    public void resizeThreadPool(int newSize) {
    }
  }

  /** Loads a log as a broker does at its start, or makes a new one. */
  static UnifiedLog open(
      File dir, Map<String, String> config, long logStart, long recoveryPoint, Tasks tasks, long nowMs, boolean clean)
      throws Exception {
    return UnifiedLog.create(dir, new LogConfig(config), logStart, recoveryPoint, tasks, new BrokerTopicStats(),
        new StoppedClock(nowMs), 15 * 60 * 1000, new ProducerStateManagerConfig(DAY_MS, false), 600_000,
        new LogDirFailureChannel(10), clean, Optional.empty());
  }

  /** A file's SHA-256 in hex. */
  static String sha256(File file) throws Exception {
    return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(file.toPath())));
  }

  private KafkaLogs() {
  }
}
