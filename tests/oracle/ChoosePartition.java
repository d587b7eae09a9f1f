import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Asks Kafka's producer: a key in hexadecimal digits and a number of partitions on each line of stdin, the partition on stdout. */
public class ChoosePartition {
  public static void main(String[] arguments) throws Exception {
    Answers.print(
        Answers.lines(System.in),
        line -> {
          String[] words = line.split(" ", -1);
          return String.valueOf(BuiltInPartitioner.partitionForKey(bytes(words[0]), Integer.parseInt(words[1])));
        });
  }

  static byte[] bytes(String digits) {
    byte[] found = new byte[digits.length() / 2];
    for (int at = 0; at < found.length; at++) {
      found[at] = (byte) Integer.parseInt(digits.substring(2 * at, 2 * at + 2), 16);
    }
    return found;
  }
}
