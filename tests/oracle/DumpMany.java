import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.DumpLogSegments;

/**
 * Runs Kafka's dump tool for many argument lists in one JVM, since starting one for each file takes longer than the dump.
 *
 * <p>Arguments: CASES (a file: one JSON array of strings a line) LIMIT_MS (a case that takes longer counts as hung).
 * Prints one frame a case: a line "EXIT STDOUT_BYTES STDERR_BYTES", then those bytes. EXIT is what the process would have
 * ended with; an exception is printed to the case's stderr as the JVM prints an uncaught one. A hung case gets EXIT -1 and
 * ends the program (its thread cannot be stopped), so that the caller starts another one for the cases behind it.
 */
public class DumpMany {
  /** Thrown in place of ending the JVM. */
  static final class Exited extends RuntimeException {
    private static final long serialVersionUID = 1L;
    final int status;

    Exited(int status) {
      super("exit " + status, null, false, false);
      this.status = status;
    }
  }

  /** Where one case prints to, and what it ended with. */
  static final class Case extends Thread {
    final String[] arguments;
    final ByteArrayOutputStream stdout = new ByteArrayOutputStream();
    final ByteArrayOutputStream stderr = new ByteArrayOutputStream();
    final PrintStream printedOut = new PrintStream(stdout, false, StandardCharsets.UTF_8);
    final PrintStream printedErr = new PrintStream(stderr, false, StandardCharsets.UTF_8);
    volatile int status = -1;

    Case(String[] arguments) {
      super("main");
      setDaemon(true);
      this.arguments = arguments;
    }

    @Override
    public void run() {
      try {
        DumpLogSegments.main(arguments);
        status = 0;
      } catch (Exited exited) {
        status = exited.status;
      } catch (Throwable thrown) {
        printedErr.print("Exception in thread \"main\" ");
        thrown.printStackTrace(printedErr);
        status = 1;
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    PrintStream frames = new PrintStream(new FileOutputStream(FileDescriptor.out), false);
    long limitMs = Long.parseLong(arguments[1]);
    ObjectMapper mapper = new ObjectMapper();
    Exit.setExitProcedure((status, message) -> {
      throw new Exited(status);
    });
    for (String line : Files.readAllLines(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
      Case one = new Case(mapper.readValue(line, String[].class));
      System.setOut(one.printedOut);
      System.setErr(one.printedErr);
      one.start();
      one.join(limitMs);
      boolean hung = one.isAlive();
      one.printedOut.flush();
      one.printedErr.flush();
      byte[] out = one.stdout.toByteArray();
      byte[] err = one.stderr.toByteArray();
      frames.print((hung ? -1 : one.status) + " " + out.length + " " + err.length + "\n");
      frames.write(out, 0, out.length);
      frames.write(err, 0, err.length);
      frames.flush();
      if (hung) {
        Runtime.getRuntime().halt(3);
      }
    }
    frames.flush();
  }
}
