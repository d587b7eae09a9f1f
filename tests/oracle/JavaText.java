import com.fasterxml.jackson.databind.node.DoubleNode;
import com.fasterxml.jackson.databind.node.LongNode;
import com.fasterxml.jackson.databind.node.TextNode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.function.UnaryOperator;

/**
 * What Java makes of bytes and Jackson of values, the two that Kafka's dump tool prints through.
 *
 * <p>Argument: a mode. Reads lines of hex from stdin and prints a line of hex for each:
 * <ul>
 *   <li>decode: any bytes -> decoded as UTF-8 (with replacement characters) and encoded again
 *   <li>quote: UTF-8 text -> the JSON string that Jackson writes, with its quotes
 *   <li>double: 8 bytes of an IEEE double, big-endian -> the JSON number that Jackson writes
 *   <li>long: 8 bytes, big-endian -> the JSON number that Jackson writes
 * </ul>
 */
public class JavaText {
  static byte[] text(String printed) {
    return printed.getBytes(StandardCharsets.UTF_8);
  }

  static UnaryOperator<byte[]> operator(String mode) {
    return switch (mode) {
      case "decode" -> bytes -> text(new String(bytes, StandardCharsets.UTF_8));
      case "quote" -> bytes -> text(TextNode.valueOf(new String(bytes, StandardCharsets.UTF_8)).toString());
      case "double" -> bytes -> text(DoubleNode.valueOf(ByteBuffer.wrap(bytes).getDouble()).toString());
      case "long" -> bytes -> text(LongNode.valueOf(ByteBuffer.wrap(bytes).getLong()).toString());
      default -> throw new IllegalArgumentException("no such mode: " + mode);
    };
  }

  public static void main(String[] arguments) throws Exception {
    UnaryOperator<byte[]> operator = operator(arguments[0]);
    HexFormat hex = HexFormat.of();
    Answers.print(Answers.lines(System.in), line -> hex.formatHex(operator.apply(hex.parseHex(line))));
  }
}
