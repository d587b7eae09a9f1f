import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, since starting one takes longer than what most of them do.
 *
 * <p>Arguments: CASES (a file: one JSON array a line: the stdin of the tool as text, its class, its arguments) LIMIT_MS (a
 * case that takes longer counts as hung). Prints one frame a case: a line "EXIT STDOUT_BYTES STDERR_BYTES", then those bytes.
 * EXIT is what the process would have ended with; -1 for a case that hung, which ends the program.
 */
public class RunTools {
  /** One run of a tool: where it prints to, and what it ended with. */
  static final class Case extends Thread {
    final String[] words;
    final ByteArrayOutputStream stdout = new ByteArrayOutputStream();
    final ByteArrayOutputStream stderr = new ByteArrayOutputStream();
    final PrintStream printedOut = new PrintStream(stdout, true, StandardCharsets.UTF_8);
    final PrintStream printedErr = new PrintStream(stderr, true, StandardCharsets.UTF_8);
    final CountDownLatch done = new CountDownLatch(1);
    volatile int status = -1;

    Case(String[] words) {
      super("main");
      setDaemon(true);
      this.words = words;
    }

    @Override
    public void run() {
      String[] arguments = Arrays.copyOfRange(words, 2, words.length);
      try {
        Class.forName(words[1]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        end(0);
      } catch (InvocationTargetException thrown) {
        printedErr.print("Exception in thread \"main\" ");
        thrown.getCause().printStackTrace(printedErr);
        end(1);
      } catch (ReflectiveOperationException thrown) {
        thrown.printStackTrace(printedErr);
        end(1);
      }
    }

    /** The first status counts. */
    void end(int ended) {
      if (done.getCount() > 0) {
        status = ended;
        done.countDown();
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    PrintStream frames = new PrintStream(new FileOutputStream(FileDescriptor.out), false);
    long limitMs = Long.parseLong(arguments[1]);
    ObjectMapper mapper = new ObjectMapper();
    AtomicReference<Case> running = new AtomicReference<>();
    // A tool that ends its process stands still for ever: whatever was thrown here instead, some of them would catch and print.
    Exit.Procedure procedure =
        (status, message) -> {
          running.get().end(status);
          while (true) {
            LockSupport.park(); // it may return for no reason
          }
        };
    Exit.setExitProcedure(procedure);
    Exit.setHaltProcedure(procedure);
    for (String line : Files.readAllLines(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
      Case one = new Case(mapper.readValue(line, String[].class));
      System.setIn(new ByteArrayInputStream(one.words[0].getBytes(StandardCharsets.UTF_8)));
      System.setOut(one.printedOut);
      System.setErr(one.printedErr);
      running.set(one);
      one.start();
      boolean hung = !one.done.await(limitMs, TimeUnit.MILLISECONDS);
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
    Runtime.getRuntime().halt(0);
  }
}
