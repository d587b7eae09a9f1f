import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.streams.KafkaStreams;

/**
 * An instance of the word count of StreamsWordCount with exactly_once_v2, which runs until a line comes on stdin, or it is
 * killed. Arguments: bootstrap servers, application id, group protocol, directory of its state, number. Every count is
 * written: no cache holds one back.
 */
public class StreamsInstance {
  public static void main(String[] arguments) throws Exception {
    int at = Integer.parseInt(arguments[4]);
    Properties settings =
        StreamsWordCount.settings(arguments[0], arguments[1], "exactly_once_v2", Path.of(arguments[3]), at);
    settings.put("group.protocol", arguments[2]);
    settings.put("statestore.cache.max.bytes", 0);
    settings.put("transaction.timeout.ms", 5000);
    if (arguments[2].equals("classic")) {
      settings.put("num.standby.replicas", 1);
      settings.put("session.timeout.ms", 6000);
      settings.put("heartbeat.interval.ms", 500);
    }
    KafkaStreams streams = StreamsWordCount.start(arguments[1], settings);
    while (System.in.read() != '\n') {}
    streams.close(new KafkaStreams.CloseOptions().leaveGroup(true).timeout(Duration.ofSeconds(30)));
    System.exit(0);
  }
}
