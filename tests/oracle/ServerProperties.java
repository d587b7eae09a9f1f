import java.io.ByteArrayInputStream;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

/** Texts of server.properties on stdin, a zero byte behind each -> a line each: ok, or what Kafka says is wrong with it. */
public class ServerProperties {
    public static void main(String[] args) throws Exception {
        String all = new String(System.in.readAllBytes(), StandardCharsets.ISO_8859_1);
        for (String text : all.split("\0")) {
            String outcome;
            try {
                Properties properties = new Properties();
                properties.load(new ByteArrayInputStream(text.getBytes(StandardCharsets.ISO_8859_1)));
                new kafka.server.KafkaConfig(properties);
                outcome = "ok";
            } catch (Throwable error) {
                outcome = error.getClass().getSimpleName() + ": " + String.valueOf(error.getMessage()).replace('\n', ' ');
            }
            System.out.println(outcome);
        }
    }
}
