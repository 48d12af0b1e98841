import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/** Runs Kafka's command-line tools one after another, in one JVM. Each line of the input has the main
 * class and the arguments of one, separated by tabs; a line that begins with "<" is the input of the
 * next, with its lines separated by tabs. "exit N" follows what a tool prints. */
public class Tools {
    static class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** The first code that the present tool exits with: some catch what is thrown, and exit again. */
    static Integer code;

    public static void main(String[] args) throws Exception {
        Exit.setExitProcedure((given, message) -> {
            if (code == null)
                code = given;
            throw new Ended();
        });
        List<String> lines = new ArrayList<>();
        BufferedReader reader = new BufferedReader(new InputStreamReader(System.in));
        for (String line = reader.readLine(); line != null; line = reader.readLine())
            lines.add(line);
        for (String line : lines) {
            if (line.startsWith("<")) {
                String input = line.substring(1).replace('\t', '\n') + '\n';
                System.setIn(new ByteArrayInputStream(input.getBytes()));
                continue;
            }
            String[] words = line.split("\t");
            System.out.println("exit " + run(words[0], Arrays.copyOfRange(words, 1, words.length)));
            System.out.flush();
        }
        System.exit(0);
    }

    static int run(String name, String[] args) throws Exception {
        code = null;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace(System.out);
                return -1;
            }
        }
        return code == null ? 0 : code;
    }
}
