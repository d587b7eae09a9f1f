import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** The loop that our programs share: a line is printed for each question, in order, in UTF-8. */
final class Answers {
  /** Answers one question with one line. */
  @FunctionalInterface
  interface Answer<T> {
    String to(T question) throws Exception;
  }

  /** The lines of an input, each read when it is asked for. */
  static Iterable<String> lines(InputStream in) {
    return new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8)).lines()::iterator;
  }

  /** Prints all answers; each at once, so that those before a crash or a hang are seen. */
  static <T> void print(Iterable<T> questions, Answer<T> answer) throws Exception {
    PrintStream out = stdout();
    for (T question : questions) {
      out.print(answer.to(question) + "\n");
      out.flush();
    }
  }

  /** The program's stdout, which System.setOut does not lead elsewhere. */
  static PrintStream stdout() {
    return new PrintStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)), false, StandardCharsets.UTF_8);
  }

  private Answers() {
  }
}
