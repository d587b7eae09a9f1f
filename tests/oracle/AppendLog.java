import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.FileInputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.requests.ProduceResponse.RecordError;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.RecordValidationException;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * What does a leader make of these batches of a client: `AppendLog CASES DIR`. Each line of CASES is the topic's settings
 * (key=value,...), the leader epoch, the time in ms and the batches in hex (joined by commas), separated by tabs. Each gets a
 * new log in DIR, named t-0 below the line's number. Printed, an object a line: appends (code, first_offset, last_offset,
 * log_append_time_ms, record_errors), end_offset, and after a clean stop the SHA-256 of each file.
 */
public final class AppendLog {
  static final ObjectMapper MAPPER = new ObjectMapper();

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
    KafkaLogs.Tasks tasks = new KafkaLogs.Tasks();
    UnifiedLog log = KafkaLogs.open(dir, config, 0, 0, tasks, Long.parseLong(words[2]), true);
    tasks.run(true);
    ObjectNode answer = MAPPER.createObjectNode();
    ArrayNode appends = answer.putArray("appends");
    for (String batch : words[3].split(",")) {
      appends.add(append(log, HexFormat.of().parseHex(batch), Integer.parseInt(words[1])));
      tasks.run(true);
    }
    answer.put("end_offset", log.logEndOffset());
    log.removeLogMetrics();
    log.flush(true);
    log.close();
    tasks.run(true);
    ObjectNode files = answer.putObject("files");
    for (File file : dir.listFiles()) {
      files.put(file.getName(), KafkaLogs.sha256(file));
    }
    return answer;
  }

  public static void main(String[] words) throws Exception {
    AtomicInteger number = new AtomicInteger();
    try (var cases = new FileInputStream(words[0])) {
      Answers.print(
          Answers.lines(cases),
          line -> MAPPER.writeValueAsString(answer(new File(words[1], number.getAndIncrement() + "/t-0"), line)));
    }
  }

  private AppendLog() {
  }
}
