import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.AbstractRecords;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;

/**
 * Lets Kafka's builder make the batches of a partition as its producer does. A line of stdin is {"batch_size": n, "records":
 * [[timestamp, key, value, [[header, value]...]]...]}, with bytes in hexadecimal digits; a line of stdout has the batches.
 */
public class BuildBatches {
  static final ObjectMapper MAPPER = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    Answers.print(Answers.lines(System.in), line -> answer(MAPPER.readTree(line)));
  }

  static String answer(JsonNode asked) {
    List<String> found = new ArrayList<>();
    MemoryRecordsBuilder builder = null;
    for (JsonNode record : asked.get("records")) {
      long timestamp = record.get(0).asLong();
      byte[] key = bytes(record.get(1));
      byte[] value = bytes(record.get(2));
      Header[] headers = headers(record.get(3));
      if (builder == null || !builder.hasRoomFor(timestamp, key, value, headers)) {
        finish(builder, found);
        int most = AbstractRecords.estimateSizeInBytesUpperBound((byte) 2, CompressionType.NONE, key, value, headers);
        ByteBuffer buffer = ByteBuffer.allocate(Math.max(asked.get("batch_size").asInt(), most));
        builder = MemoryRecords.builder(buffer, Compression.NONE, TimestampType.CREATE_TIME, 0L);
      }
      builder.append(timestamp, key, value, headers);
    }
    finish(builder, found);
    return String.join(" ", found);
  }

  static void finish(MemoryRecordsBuilder builder, List<String> found) {
    if (builder != null) {
      builder.setProducerState(9L, (short) 0, found.size(), false);
      ByteBuffer built = builder.build().buffer();
      byte[] bytes = new byte[built.remaining()];
      built.get(bytes);
      found.add(HexFormat.of().formatHex(bytes));
    }
  }

  static byte[] bytes(JsonNode digits) {
    return digits.isNull() ? null : HexFormat.of().parseHex(digits.asText());
  }

  static Header[] headers(JsonNode given) {
    List<Header> found = new ArrayList<>();
    given.forEach(one -> found.add(new RecordHeader(new String(bytes(one.get(0))), bytes(one.get(1)))));
    return found.toArray(new Header[0]);
  }
}
