import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.StringJoiner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.server.share.persister.PersisterStateBatch;

/**
 * What Kafka's dump tool, and its message classes, make of bytes.
 *
 * <p>Reads a question a line from stdin, words parted by a blank, bytes in hex and "-" for none, and answers each with a line
 * of words of the same kind (text in UTF-8); a failure is answered with "! " and the exception's class and message.
 * <pre>
 *   describe DECODER OFFSET KEY VALUE    KEY-TEXT PAYLOAD-TEXT, "-" where the tool prints none
 *   control KEY VALUE                    what the tool prints at the end of the record's line
 *   message CLASS VERSION BYTES          the message's JSON, and its bytes written again
 *   combine START BATCHES BATCHES        the share coordinator's sum of old and new state batches from START on
 * </pre>
 * BATCHES are FIRST:LAST:STATE:COUNT, parted by commas, or "-" for none. DECODER is offsets, transaction, metadata, remote or share; CLASS a generated message's full name.
 */
public class DescribeRecords {
  static final HexFormat HEX = HexFormat.of();
  static final String TOOL = "org.apache.kafka.tools.DumpLogSegments";
  static final Map<String, String> PARSERS = Map.of(
      "offsets", "OffsetsMessageParser",
      "transaction", "TransactionLogMessageParser",
      "metadata", "ClusterMetadataLogMessageParser",
      "remote", "RemoteMetadataLogMessageParser",
      "share", "ShareGroupStateMessageParser");

  static byte[] bytes(String word) {
    return word.equals("-") ? null : HEX.parseHex(word);
  }

  static String hex(String text) {
    return HEX.formatHex(text.getBytes(StandardCharsets.UTF_8));
  }

  static Record record(long offset, String key, String value) {
    SimpleRecord simple = new SimpleRecord(0L, bytes(key), bytes(value));
    return MemoryRecords.withRecords(offset, Compression.NONE, simple).records().iterator().next();
  }

  static String shown(Object text) {
    Optional<?> optional = (Optional<?>) text;
    return optional.isEmpty() ? "-" : hex(optional.get().toString());
  }

  static String describe(String decoder, long offset, String key, String value) throws Exception {
    Class<?> parserClass = Class.forName(TOOL + "$" + PARSERS.get(decoder));
    Constructor<?> constructor = parserClass.getDeclaredConstructor();
    constructor.setAccessible(true);
    Method parse = Class.forName(TOOL + "$MessageParser").getDeclaredMethod("parse", Record.class);
    parse.setAccessible(true);
    Object result = parse.invoke(constructor.newInstance(), record(offset, key, value));
    Method keyOf = result.getClass().getDeclaredMethod("key");
    Method valueOf = result.getClass().getDeclaredMethod("value");
    keyOf.setAccessible(true);
    valueOf.setAccessible(true);
    return shown(keyOf.invoke(result)) + " " + shown(valueOf.invoke(result));
  }

  static String control(String key, String value) throws Exception {
    Method print = Class.forName(TOOL).getDeclaredMethod("printControlRecord", Record.class);
    print.setAccessible(true);
    PrintStream before = System.out;
    ByteArrayOutputStream printed = new ByteArrayOutputStream();
    System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
    try {
      print.invoke(null, record(0, key, value));
    } finally {
      System.setOut(before);
    }
    return HEX.formatHex(printed.toByteArray());
  }

  static String message(String name, short version, String data) throws Exception {
    Class<?> messageClass = Class.forName(name);
    Readable readable = new ByteBufferAccessor(ByteBuffer.wrap(bytes(data)));
    Object message = messageClass.getConstructor(Readable.class, short.class).newInstance(readable, version);
    Method write = Class.forName(name + "JsonConverter").getMethod("write", messageClass, short.class);
    ByteBuffer again = MessageUtil.toByteBufferAccessor((Message) message, version).buffer();
    byte[] written = new byte[again.remaining()];
    again.get(written);
    return hex(write.invoke(null, message, version).toString()) + " " + HEX.formatHex(written);
  }

  static List<PersisterStateBatch> batches(String word) {
    List<PersisterStateBatch> out = new ArrayList<>();
    for (String batch : word.equals("-") ? new String[0] : word.split(",")) {
      String[] part = batch.split(":");
      out.add(new PersisterStateBatch(
          Long.parseLong(part[0]), Long.parseLong(part[1]), Byte.parseByte(part[2]), Short.parseShort(part[3])));
    }
    return out;
  }

  static String combine(long start, String before, String added) {
    StringJoiner out = new StringJoiner(",");
    for (var batch : new PersisterStateBatchCombiner(batches(before), batches(added), start).combineStateBatches()) {
      out.add(batch.firstOffset() + ":" + batch.lastOffset() + ":" + batch.deliveryState() + ":" + batch.deliveryCount());
    }
    return out.length() == 0 ? "-" : out.toString();
  }

  static String answer(String[] words) {
    try {
      return switch (words[0]) {
        case "describe" -> describe(words[1], Long.parseLong(words[2]), words[3], words[4]);
        case "control" -> control(words[1], words[2]);
        case "combine" -> combine(Long.parseLong(words[1]), words[2], words[3]);
        case "message" -> message(words[1], Short.parseShort(words[2]), words[3]);
        default -> throw new IllegalArgumentException(words[0]);
      };
    } catch (InvocationTargetException failed) {
      return "! " + failed.getCause();
    } catch (Exception failed) {
      return "! " + failed;
    }
  }

  public static void main(String[] arguments) throws Exception {
    Answers.print(Answers.lines(System.in), line -> answer(line.split(" ", -1)).replace('\n', ' '));
  }
}
