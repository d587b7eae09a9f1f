import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.PropertiesUtils;
import org.apache.kafka.raft.FileQuorumStateStore;
import org.apache.kafka.snapshot.Snapshots;
import org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogFileUtils;
import org.apache.kafka.storage.internals.log.OffsetIndex;
import org.apache.kafka.storage.internals.log.OffsetPosition;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.TimeIndex;
import org.apache.kafka.storage.internals.log.TimestampOffset;
import org.apache.kafka.storage.internals.log.TransactionIndex;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * What Kafka makes of the small files of a log directory and of the names of files and directories.
 *
 * <p>Argument: a directory to write into. Reads lines "KIND HEX [NUMBER...]" from stdin, HEX being a file's bytes or a name
 * in UTF-8, and prints for each a line of hex of "ok ANSWER" or "error MESSAGE" (of the innermost cause). The file that the
 * bytes are written to is named "file", so that messages can be compared.
 */
public class SmallFiles {
  final Path dir;
  final File file;

  SmallFiles(Path dir) {
    this.dir = dir;
    this.file = dir.resolve("file").toFile();
  }

  String answer(String kind, byte[] bytes, long[] numbers) throws Exception {
    String name = new String(bytes, StandardCharsets.UTF_8);
    switch (kind) {
      case "directory":
        return UnifiedLog.parseTopicPartitionName(new File("/d", name)).toString();
      case "offset":
        return Long.toString(LogFileUtils.offsetFromFileName(name));
      case "checkpoint":
        return Snapshots.parse(Path.of(name)).map(path -> path.snapshotId() + " " + path.partial() + " " + path.deleted())
            .orElse("none");
      case "clean":
        Files.write(dir.resolve(".kafka_cleanshutdown"), bytes);
        return new CleanShutdownFileHandler(dir.toString()).read().toString();
      default:
        Files.write(file.toPath(), bytes);
        return file(kind, numbers);
    }
  }

  String file(String kind, long[] numbers) throws Exception {
    LogDirFailureChannel channel = new LogDirFailureChannel(1);
    switch (kind) {
      case "offsets":
        return new TreeMap<>(new OffsetCheckpointFile(file, channel).read().entrySet().stream()
            .collect(Collectors.toMap(entry -> entry.getKey().toString(), entry -> entry.getValue()))).toString();
      case "epochs":
        return new LeaderEpochCheckpointFile(file, channel).read().stream()
            .map(entry -> entry.epoch() + " " + entry.startOffset()).toList().toString();
      case "partition":
        return new PartitionMetadataFile(file, channel).read().encode();
      case "meta":
        return new MetaProperties.Builder(PropertiesUtils.readPropertiesFile(file.toString())).build().toString();
      case "quorum":
        return new FileQuorumStateStore(file).readElectionState().toString();
      case "snapshot":
        return Integer.toString(ProducerStateManager.readSnapshot(file).size());
      case "index":
        return offsetIndex(numbers[0], numbers[1]);
      case "timeindex":
        return timeIndex(numbers[0], numbers[1]);
      case "txnindex":
        return transactionIndex(numbers[0], numbers[1], numbers[2]);
      default:
        throw new IllegalArgumentException("no such kind: " + kind);
    }
  }

  String offsetIndex(long baseOffset, long target) throws Exception {
    OffsetIndex index = new OffsetIndex(file, baseOffset, -1, true);
    OffsetPosition found = index.lookup(target);
    String sanity = message(index::sanityCheck);
    index.truncateTo(target);
    return found.offset() + " " + found.position() + " " + index.entries() + " " + sanity;
  }

  String timeIndex(long baseOffset, long target) throws Exception {
    TimeIndex index = new TimeIndex(file, baseOffset, -1, true);
    TimestampOffset found = index.lookup(target);
    String sanity = message(index::sanityCheck);
    index.truncateTo(target);
    return found.timestamp() + " " + found.offset() + " " + index.entries() + " " + sanity;
  }

  String transactionIndex(long baseOffset, long first, long end) throws Exception {
    try (TransactionIndex index = new TransactionIndex(baseOffset, file)) {
      String sanity = message(index::sanityCheck);
      var found = index.collectAbortedTxns(first, end);
      return found.abortedTransactions().stream().map(AbortedTxn::toString).toList() + " " + found.isComplete() + " " + sanity;
    }
  }

  static String message(Runnable check) {
    try {
      check.run();
      return "sound";
    } catch (RuntimeException e) {
      return e.getMessage();
    }
  }

  /** The answer to a line, in hex. */
  String answer(String line) {
    HexFormat hex = HexFormat.of();
    String[] words = line.split(" ", -1);
    long[] numbers = new long[words.length - 2];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = Long.parseLong(words[i + 2]);
    }
    String answer;
    try {
      answer = "ok " + answer(words[0], hex.parseHex(words[1]), numbers);
    } catch (Throwable e) {
      while (e.getCause() != null) {
        e = e.getCause();
      }
      answer = "error " + e.getMessage();
    }
    return hex.formatHex(answer.getBytes(StandardCharsets.UTF_8));
  }

  public static void main(String[] arguments) throws Exception {
    SmallFiles files = new SmallFiles(Path.of(arguments[0]));
    Answers.print(Answers.lines(System.in), files::answer);
  }
}
