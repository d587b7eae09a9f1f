import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * What Kafka's cleaner may clean of a log by its high watermark: `CleanableOffsets DIR SEGMENT_BYTES LOG_START LOG_END NOW_MS
 * MARK...`. DIR was left by a clean stop. Printed, an object a MARK: high_watermark, first_uncleanable, cleanable_bytes. A
 * MARK is an offset as replication-offset-checkpoint has it, or "none": then 0 is set, as a broker does for a partition
 * without an entry.
 */
public final class CleanableOffsets {
  public static void main(String[] words) throws Exception {
    ObjectMapper mapper = new ObjectMapper();
    long nowMs = Long.parseLong(words[4]);
    KafkaLogs.Tasks tasks = new KafkaLogs.Tasks();
    Map<String, String> config = Map.of("cleanup.policy", "compact", "internal.segment.bytes", words[1]);
    UnifiedLog log =
        KafkaLogs.open(new File(words[0]), config, Long.parseLong(words[2]), Long.parseLong(words[3]), tasks, nowMs, true);
    Method asked = LogCleanerManager.class.getDeclaredMethod("cleanableOffsets", UnifiedLog.class, Optional.class, long.class);
    asked.setAccessible(true);
    for (int at = 5; at < words.length; at++) {
      log.updateHighWatermark(words[at].equals("none") ? 0 : Long.parseLong(words[at]));
      Object found = asked.invoke(null, log, Optional.empty(), nowMs);
      long dirty = offset(found, "firstDirtyOffset");
      var cleanable =
          LogCleanerManager.calculateCleanableBytes(log, dirty, offset(found, "firstUncleanableDirtyOffset"));
      ObjectNode answer = mapper.createObjectNode().put("high_watermark", log.highWatermark());
      answer.put("first_uncleanable", cleanable.getKey()).put("cleanable_bytes", cleanable.getValue());
      System.out.println(mapper.writeValueAsString(answer));
    }
    log.close();
  }

  private static long offset(Object found, String name) throws Exception {
    Method method = found.getClass().getDeclaredMethod(name);
    method.setAccessible(true);
    return (long) method.invoke(found);
  }

  private CleanableOffsets() {
  }
}
