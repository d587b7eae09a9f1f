import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Crc32C;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * Loads partition directories with Kafka's own UnifiedLog.create, as a broker does at its start, which CHANGES their files;
 * prints one JSON object a directory. Give it copies.
 *
 * <pre>
 *   LoadLog [OPTION...] clean|unclean DIR...     offsets from the checkpoint files of DIR's parent, 0 where it has none
 *   LoadLog [OPTION...] --batch FILE             a line a directory: DIR TAB clean|unclean TAB recovery point TAB log start
 *                                                offset [TAB key=value,...]; "-" as an offset: from the checkpoint files
 *   --recovery-point N, --log-start N            instead of the checkpoint files
 *   --config KEY=VALUE                           a topic setting other than its default, for all directories
 *   --no-close        leave the files as loading left them: the active segment's indexes keep their preallocated size
 *   --keep-deleted    leave *.deleted that this load made (a broker removes them file.delete.delay.ms later; so does this)
 *   --now-ms N        the clock during the load (0: no producer ever expires; a broker drops, at load, those older than
 *                     producer.id.expiration.ms, one day, that have no open transaction)
 *   --entries         list index entries instead of their count and CRC-32C
 *   --trace           name each directory on stderr, where Kafka's own warnings go
 * </pre>
 *
 * <p>After the load it does what a clean stop of a broker does: flush (all of the log), write a producer snapshot at the log
 * end offset, close the segments, which trims the indexes. It does not write the checkpoint files of the parent directory.
 * It reads index entries from the files after that, never through Kafka's lazy indexes: opening those has effects of its own.
 *
 * <p>Keys printed: dir, mode, recovery_point_offset and log_start_offset (those given), exception (class, message, cause,
 * where, phase: "load" is Kafka refusing the directory, the other two are "describe" and "close"; no segments then), log
 * (start_offset, end_offset, recovery_point_offset, last_stable_offset and first_unstable_offset with the high watermark at
 * the end), segments (base_offset, size_bytes,
 * largest_timestamp_ms: the last .timeindex entry, -1 where it has none; offset_index, time_index, transaction_index: count,
 * crc32c of the entries' bytes or entries), producers (by id), leader_epochs, files (name: size_bytes, sha256).
 */
public class LoadLog {
  static final ObjectMapper MAPPER = new ObjectMapper();

  /** One directory to load; offsets of null are looked up in the checkpoint files beside it. */
  record Case(File dir, boolean clean, Long recoveryPoint, Long logStart, Map<String, String> config) {
  }

  boolean close = true;
  boolean keepDeleted = false;
  boolean entries = false;
  boolean trace = false;
  long nowMs = 0;
  Long recoveryPoint = null;
  Long logStart = null;
  final Map<String, String> config = new HashMap<>();
  final List<Case> cases = new ArrayList<>();

  static Long offset(String word) {
    return word.equals("-") ? null : Long.valueOf(word);
  }

  static void setting(String word, Map<String, String> into) {
    int at = word.indexOf('=');
    into.put(word.substring(0, at), word.substring(at + 1));
  }

  void readBatch(Path file) throws IOException {
    for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
      String[] words = line.split("\t", -1);
      Map<String, String> own = new HashMap<>(config);
      if (words.length > 4 && !words[4].isEmpty()) {
        for (String word : words[4].split(",")) {
          setting(word, own);
        }
      }
      cases.add(new Case(new File(words[0]), words[1].equals("clean"), offset(words[2]), offset(words[3]), own));
    }
  }

  void readArguments(String[] words) throws IOException {
    Path batch = null;
    List<String> plain = new ArrayList<>();
    for (int i = 0; i < words.length; i++) {
      switch (words[i]) {
        case "--no-close" -> close = false;
        case "--keep-deleted" -> keepDeleted = true;
        case "--entries" -> entries = true;
        case "--trace" -> trace = true;
        case "--now-ms" -> nowMs = Long.parseLong(words[++i]);
        case "--recovery-point" -> recoveryPoint = offset(words[++i]);
        case "--log-start" -> logStart = offset(words[++i]);
        case "--config" -> setting(words[++i], config);
        case "--batch" -> batch = Path.of(words[++i]);
        default -> plain.add(words[i]);
      }
    }
    if (batch != null) {
      readBatch(batch);
    }
    for (int i = 1; i < plain.size(); i++) {
      cases.add(new Case(new File(plain.get(i)), plain.get(0).equals("clean"), recoveryPoint, logStart, config));
    }
  }

  /** The offset that a checkpoint file of the log directory has for the partition, as the broker reads it; 0 without one. */
  static long checkpointed(File dir, String name) throws IOException {
    File file = new File(dir.getAbsoluteFile().getParentFile(), name);
    if (!file.exists()) {
      return 0;
    }
    Map<TopicPartition, Long> offsets = new OffsetCheckpointFile(file, new LogDirFailureChannel(1)).read();
    return offsets.getOrDefault(UnifiedLog.parseTopicPartitionName(dir), 0L);
  }

  ObjectNode answer(Case one) throws Exception {
    ObjectNode answer = MAPPER.createObjectNode();
    answer.put("dir", one.dir.getPath()).put("mode", one.clean ? "clean" : "unclean");
    UnifiedLog log = null;
    KafkaLogs.Tasks tasks = new KafkaLogs.Tasks();
    String phase = "load";
    try {
      long recovery =
          one.recoveryPoint != null ? one.recoveryPoint : checkpointed(one.dir, "recovery-point-offset-checkpoint");
      long start = one.logStart != null ? one.logStart : checkpointed(one.dir, "log-start-offset-checkpoint");
      answer.put("recovery_point_offset", recovery).put("log_start_offset", start);
      log = KafkaLogs.open(one.dir, one.config, start, recovery, tasks, nowMs, one.clean);
      tasks.run(keepDeleted);
      phase = "describe";
      describe(log, answer);
      phase = "close";
      finish(log, tasks);
      log = null;
    } catch (Exception | OutOfMemoryError | StackOverflowError thrown) {
      answer.set("exception", exception(thrown).put("phase", phase));
    } finally {
      if (log != null) {
        log.removeLogMetrics();
      }
    }
    if (!answer.has("exception")) {
      answer.set("segments", segments(one.dir, answer.path("active_index_entries")));
      answer.remove("active_index_entries");
    }
    answer.set("files", files(one.dir));
    return answer;
  }

  /** What a broker's clean stop does to a log, then what its scheduler would still have run. */
  void finish(UnifiedLog log, KafkaLogs.Tasks tasks) {
    log.removeLogMetrics();
    if (close) {
      log.flush(true);
      log.close();
    }
    tasks.run(keepDeleted);
  }

  static ObjectNode exception(Throwable thrown) {
    ObjectNode node = MAPPER.createObjectNode();
    node.put("class", thrown.getClass().getName()).put("message", thrown.getMessage());
    node.put("cause", thrown.getCause() == null ? null : thrown.getCause().toString());
    ArrayNode where = node.putArray("where");
    for (StackTraceElement frame : thrown.getStackTrace()) {
      if (frame.getClassName().startsWith("org.apache.kafka") && where.size() < 4) {
        where.add(frame.getClassName().replaceAll(".*\\.", "") + "." + frame.getMethodName());
      }
    }
    return node;
  }

  static void describe(UnifiedLog log, ObjectNode answer) throws IOException {
    long recoveryPoint = log.recoveryPoint();
    log.updateHighWatermark(log.logEndOffset());
    ObjectNode offsets = answer.putObject("log");
    offsets.put("start_offset", log.logStartOffset()).put("end_offset", log.logEndOffset());
    offsets.put("recovery_point_offset", recoveryPoint);
    offsets.put("last_stable_offset", log.lastStableOffset());
    offsets.put("first_unstable_offset", log.firstUnstableOffset().orElse(null));
    // The active segment's indexes are open already, so asking them changes nothing.
    LogSegment active = log.activeSegment();
    answer.putObject("active_index_entries").put("base_offset", active.baseOffset())
        .put("index", active.offsetIndex().entries()).put("timeindex", active.timeIndex().entries());
    ArrayNode producers = answer.putArray("producers");
    Map<Long, Integer> sequences = log.activeProducersWithLastSequence();
    for (var each : new TreeMap<>(log.producerStateManager().activeProducers()).entrySet()) {
      describeProducer(each.getValue(), sequences.get(each.getKey()), producers.addObject());
    }
    ArrayNode epochs = answer.putArray("leader_epochs");
    log.leaderEpochCache().epochEntries()
        .forEach(entry -> epochs.addObject().put("epoch", entry.epoch()).put("start_offset", entry.startOffset()));
  }

  static void describeProducer(ProducerStateEntry state, int lastSequence, ObjectNode node) {
    node.put("producer_id", state.producerId()).put("producer_epoch", state.producerEpoch());
    node.put("last_sequence", lastSequence).put("last_offset", state.lastDataOffset());
    node.put("last_timestamp_ms", state.lastTimestamp()).put("coordinator_epoch", state.coordinatorEpoch());
    var firstOffset = state.currentTxnFirstOffset();
    node.put("current_txn_first_offset", firstOffset.isPresent() ? firstOffset.getAsLong() : -1L);
    ArrayNode batches = node.putArray("batches");
    for (BatchMetadata batch : state.batchMetadata()) {
      batches.addObject().put("first_sequence", batch.firstSeq()).put("last_sequence", batch.lastSeq())
          .put("last_offset", batch.lastOffset()).put("offset_delta", batch.offsetDelta());
    }
  }

  /** The segments as their files stand now; `active` says how many entries of the open indexes count when not closed. */
  ArrayNode segments(File dir, JsonNode active) throws IOException {
    ArrayNode segments = MAPPER.createArrayNode();
    for (File log : sorted(dir)) {
      if (!log.getName().matches("\\d{20}\\.log")) {
        continue;
      }
      String stem = log.getPath().substring(0, log.getPath().length() - 4);
      long baseOffset = Long.parseLong(log.getName().substring(0, 20));
      boolean open = !close && active.path("base_offset").asLong(-1) == baseOffset;
      ObjectNode node = segments.addObject().put("base_offset", baseOffset).put("size_bytes", log.length());
      byte[] times = index(stem + ".timeindex", 12, open ? active.path("timeindex").asInt() : -1);
      long largest = times.length == 0 ? -1 : ByteBuffer.wrap(times).getLong(times.length - 12);
      node.put("largest_timestamp_ms", largest);
      node.set("offset_index", index(index(stem + ".index", 8, open ? active.path("index").asInt() : -1), 8));
      node.set("time_index", index(times, 12));
      node.set("transaction_index", index(index(stem + ".txnindex", 34, -1), 34));
    }
    return segments;
  }

  /** The whole entries of an index file, at most `limit` of them unless that is -1. */
  static byte[] index(String path, int entryBytes, int limit) throws IOException {
    Path file = Path.of(path);
    byte[] bytes = Files.exists(file) ? Files.readAllBytes(file) : new byte[0];
    int count = bytes.length / entryBytes;
    return Arrays.copyOf(bytes, (limit < 0 ? count : Math.min(limit, count)) * entryBytes);
  }

  ObjectNode index(byte[] bytes, int entryBytes) {
    ObjectNode node = MAPPER.createObjectNode().put("count", bytes.length / entryBytes);
    if (!entries) {
      return node.put("crc32c", Crc32C.compute(bytes, 0, bytes.length));
    }
    ArrayNode list = node.putArray("entries");
    ByteBuffer buffer = ByteBuffer.wrap(bytes);
    while (buffer.hasRemaining()) {
      ArrayNode entry = list.addArray();
      switch (entryBytes) {
        case 8 -> entry.add(buffer.getInt()).add(buffer.getInt());
        case 12 -> entry.add(buffer.getLong()).add(buffer.getInt());
        default -> entry.add(buffer.getShort()).add(buffer.getLong()).add(buffer.getLong()).add(buffer.getLong())
            .add(buffer.getLong());
      }
    }
    return node;
  }

  static List<File> sorted(File dir) {
    File[] files = dir.listFiles(File::isFile);
    return files == null ? List.of() : List.of(files).stream().sorted().toList();
  }

  static ObjectNode files(File dir) throws Exception {
    ObjectNode node = MAPPER.createObjectNode();
    for (File file : sorted(dir)) {
      node.putObject(file.getName()).put("size_bytes", file.length()).put("sha256", KafkaLogs.sha256(file));
    }
    return node;
  }

  public static void main(String[] words) throws Exception {
    LoadLog program = new LoadLog();
    program.readArguments(words);
    Answers.print(program.cases, one -> {
      if (program.trace) {
        System.err.println("== " + one.dir + " " + (one.clean ? "clean" : "unclean"));
      }
      return MAPPER.writeValueAsString(program.answer(one));
    });
  }
}
