import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, since starting one takes longer than what most of them do.
 *
 * <p>Arguments: CASES (a file: one JSON array a line: the stdin of the tool as text, its class, its arguments) LIMIT_MS (a
 * case that takes longer counts as hung). Prints one frame a case: a line "EXIT STDOUT_BYTES STDERR_BYTES", then those bytes.
 * EXIT is what the process would have ended with; -1 for a case that hung, which ends the program (its thread cannot be
 * stopped), so that the caller starts another one for the cases behind it. An exception is printed to the case's stderr as
 * the JVM prints an uncaught one.
 *
 * <p>A case with --bootstrap-server begins when that broker has the metadata of its controller, which answers a change before
 * the broker knows of it: what a tool has changed, the next one sees.
 */
public class RunTools {
  static final String ADDRESS_OPTION = "--bootstrap-server";
  static final String CONFIG_OPTION = "--command-config";

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
      } catch (Throwable thrown) {
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

  /** Runs a case, at most so long, and prints its frame -> whether it ended. */
  static boolean run(Case one, long limitMs, PrintStream frames) throws InterruptedException {
    System.setIn(new ByteArrayInputStream(one.words[0].getBytes(StandardCharsets.UTF_8)));
    System.setOut(one.printedOut);
    System.setErr(one.printedErr);
    one.start();
    boolean hung = !one.done.await(limitMs, TimeUnit.MILLISECONDS);
    // Not through the tool's streams, whose locks it may hold: they keep nothing back.
    byte[] out = one.stdout.toByteArray();
    byte[] err = one.stderr.toByteArray();
    frames.print((hung ? -1 : one.status) + " " + out.length + " " + err.length + "\n");
    frames.write(out, 0, out.length);
    frames.write(err, 0, err.length);
    frames.flush();
    return !hung;
  }

  /** Waits until the broker has all metadata that are committed now: its features have the offset of its metadata. */
  static void awaitMetadata(Admin admin) throws Exception {
    long last = admin.describeMetadataQuorum().quorumInfo().get().highWatermark() - 1;
    while (admin.describeFeatures().featureMetadata().get().finalizedFeaturesEpoch().orElseThrow() < last) {
      Thread.sleep(5); // a poll of another process, which gives no other sign
    }
  }

  /** Runs the cases, in order, until one hangs -> whether none did. */
  static boolean runAll(Path cases, long limitMs) throws Exception {
    PrintStream frames = Answers.stdout();
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
    Map<String, Admin> admins = new HashMap<>();
    for (String line : Files.readAllLines(cases, StandardCharsets.UTF_8)) {
      Case one = new Case(mapper.readValue(line, String[].class));
      int option = Arrays.asList(one.words).indexOf(ADDRESS_OPTION);
      if (option >= 0) {
        String address = one.words[option + 1];
        int config = Arrays.asList(one.words).indexOf(CONFIG_OPTION);
        Properties settings = new Properties(); // of a listener with TLS or SASL
        if (config >= 0) {
          settings.load(Files.newBufferedReader(Path.of(one.words[config + 1])));
        }
        settings.put("bootstrap.servers", address);
        awaitMetadata(admins.computeIfAbsent(address, at -> Admin.create(settings)));
      }
      running.set(one);
      if (!run(one, limitMs, frames)) {
        return false;
      }
    }
    return true;
  }

  /** However this ends, the process does: threads that the tools left behind would keep it for ever. */
  public static void main(String[] arguments) {
    PrintStream err = System.err;
    int status = 1;
    try {
      status = runAll(Path.of(arguments[0]), Long.parseLong(arguments[1])) ? 0 : 3;
    } catch (Throwable thrown) {
      thrown.printStackTrace(err);
    } finally {
      Runtime.getRuntime().halt(status);
    }
  }
}
