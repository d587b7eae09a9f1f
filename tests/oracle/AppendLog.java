import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.requests.ProduceResponse.RecordError;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.RecordValidationException;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * What does a leader make of these batches of a client: `AppendLog CASES DIR`. Each line of CASES is the topic's settings
 * (key=value,...), the leader epoch, the time in ms and the batches in hex (joined by commas), separated by tabs. Each gets a
 * new log in DIR, named t-0 below the line's number. Printed, an object a line: appends (code, first_offset, last_offset,
 * log_append_time_ms, record_errors), end_offset, and after a clean stop the SHA-256 of each file.
 */
public final class AppendLog {
  static final ObjectMapper MAPPER = new ObjectMapper();
  static final int DAY_MS = 24 * 60 * 60 * 1000;

  /** Stands still. */
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

  static final class Done extends FutureTask<Void> implements ScheduledFuture<Void> {
    Done() {
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

  /** Runs one-time tasks at once, periodic ones never. */
  static final class AtOnce implements Scheduler {
    @Override
    public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
      if (periodMs < 0 && !name.startsWith("delete-")) {
        task.run();
      }
      return new Done();
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

  static ObjectNode append(UnifiedLog log, byte[] batch, int leaderEpoch) {
    ObjectNode node = MAPPER.createObjectNode();
    try {
      MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(batch));
      ProduceRequest.validateRecords((short) 9, records);
      LogAppendInfo info = log.appendAsLeader(records, leaderEpoch);
      node.put("code", 0).put("first_offset", info.firstOffset()).put("last_offset", info.lastOffset());
      node.put("log_append_time_ms", info.logAppendTime());
    } catch (RecordValidationException thrown) {
      node.put("code", Errors.forException(thrown.invalidException()).code());
      ArrayNode errors = node.putArray("record_errors");
      for (RecordError error : thrown.recordErrors()) {
        errors.add(error.batchIndex);
      }
    } catch (Throwable thrown) {
      node.put("code", Errors.forException(thrown).code()).put("message", thrown.toString());
    }
    return node;
  }

  static ObjectNode answer(File dir, String line) throws Exception {
    String[] words = line.split("\t", -1);
    Map<String, String> config = new HashMap<>();
    for (String word : words[0].split(",")) {
      int at = word.indexOf('=');
      if (at > 0) {
        config.put(word.substring(0, at), word.substring(at + 1).replace(';', ','));
      }
    }
    Files.createDirectories(dir.toPath());
    UnifiedLog log = UnifiedLog.create(dir, new LogConfig(config), 0, 0, new AtOnce(), new BrokerTopicStats(),
        new StoppedClock(Long.parseLong(words[2])), 15 * 60 * 1000, new ProducerStateManagerConfig(DAY_MS, false), 600_000,
        new LogDirFailureChannel(10), true, Optional.empty());
    ObjectNode answer = MAPPER.createObjectNode();
    ArrayNode appends = answer.putArray("appends");
    for (String batch : words[3].split(",")) {
      appends.add(append(log, HexFormat.of().parseHex(batch), Integer.parseInt(words[1])));
    }
    answer.put("end_offset", log.logEndOffset());
    log.removeLogMetrics();
    log.flush(true);
    log.close();
    ObjectNode files = answer.putObject("files");
    for (File file : dir.listFiles()) {
      byte[] digest = MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(file.toPath()));
      files.put(file.getName(), HexFormat.of().formatHex(digest));
    }
    return answer;
  }

  public static void main(String[] words) throws Exception {
    int number = 0;
    for (String line : Files.readAllLines(Path.of(words[0]), StandardCharsets.UTF_8)) {
      System.out.println(MAPPER.writeValueAsString(answer(new File(words[1], number++ + "/t-0"), line)));
    }
  }

  private AppendLog() {
  }
}
