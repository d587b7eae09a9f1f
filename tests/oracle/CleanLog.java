import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.FileInputStream;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;

/**
 * Cleans partition directories with Kafka's own Cleaner, one round each at a fixed time, which CHANGES their files: `CleanLog
 * CASES`. Each line of CASES is DIR, the topic's settings (key=value,...), the log start offset, the first dirty offset, the
 * first uncleanable offset, the log end offset, the time in ms and the bytes of the offset map, separated by tabs. The
 * directories must have been left by a clean stop. Printed, an object a line: end_offset, messages_read, messages_written,
 * invalid_messages, and of the round alone seconds, thread_cpu_seconds and process_cpu_seconds (the compiler's and the
 * collector's too); or exception.
 */
public final class CleanLog {
  static final ObjectMapper MAPPER = new ObjectMapper();
  static final int IO_BUFFER_BYTES = 512 * 1024;
  static final double LOAD_FACTOR = 0.9;

  static ObjectNode answer(String line) throws Exception {
    String[] words = line.split("\t", -1);
    Map<String, String> config = new HashMap<>();
    for (String word : words[1].split(",")) {
      int at = word.indexOf('=');
      if (at > 0) {
        config.put(word.substring(0, at), word.substring(at + 1).replace(';', ','));
      }
    }
    long[] numbers = new long[6];
    for (int at = 0; at < numbers.length; at++) {
      numbers[at] = Long.parseLong(words[at + 2]);
    }
    long nowMs = numbers[4];
    KafkaLogs.Tasks tasks = new KafkaLogs.Tasks();
    UnifiedLog log = KafkaLogs.open(new File(words[0]), config, numbers[0], numbers[3], tasks, nowMs, true);
    tasks.run(false);
    ObjectNode answer = MAPPER.createObjectNode();
    try {
      log.updateHighWatermark(log.logEndOffset());
      KafkaLogs.StoppedClock clock = new KafkaLogs.StoppedClock(nowMs);
      Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", clock);
      Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap((int) numbers[5]), IO_BUFFER_BYTES,
          Integer.MAX_VALUE / 4, LOAD_FACTOR, throttler, clock, partition -> { });
      var machine = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
      var threads = ManagementFactory.getThreadMXBean();
      long processBegan = machine.getProcessCpuTime();
      long threadBegan = threads.getCurrentThreadCpuTime();
      long began = System.nanoTime();
      Map.Entry<Long, CleanerStats> cleaned = cleaner.doClean(new LogToClean(log, numbers[1], numbers[2], false), nowMs);
      answer.put("seconds", (System.nanoTime() - began) / 1e9);
      answer.put("thread_cpu_seconds", (threads.getCurrentThreadCpuTime() - threadBegan) / 1e9);
      answer.put("process_cpu_seconds", (machine.getProcessCpuTime() - processBegan) / 1e9);
      CleanerStats stats = cleaned.getValue();
      answer.put("end_offset", cleaned.getKey()).put("messages_read", stats.messagesRead());
      answer.put("messages_written", stats.messagesWritten()).put("invalid_messages", stats.invalidMessagesRead());
    } catch (Exception | AssertionError thrown) {
      answer.put("exception", thrown.toString());
    }
    log.removeLogMetrics();
    log.close();
    tasks.run(false);
    return answer;
  }

  public static void main(String[] words) throws Exception {
    try (var cases = new FileInputStream(words[0])) {
      Answers.print(Answers.lines(cases), line -> MAPPER.writeValueAsString(answer(line)));
    }
  }

  private CleanLog() {
  }
}
