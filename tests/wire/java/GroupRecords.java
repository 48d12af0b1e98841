import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads records of groups with Kafka's own classes, and writes them again.
 *
 * Each line of the file is a class, a version and bytes in hexadecimal; each line of the answer is
 * what that class writes of what it has read, or what was wrong.
 */
public class GroupRecords {
    private static final String PACKAGE = "org.apache.kafka.coordinator.group.generated.";

    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split(" ", -1);
            System.out.println(again(parts[0], Short.parseShort(parts[1]), parts[2]));
        }
    }

    private static String again(String name, short version, String hex) throws Exception {
        ApiMessage message =
            (ApiMessage) Class.forName(PACKAGE + name).getConstructor().newInstance();
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
        try {
            message.read(new ByteBufferAccessor(bytes), version);
        } catch (RuntimeException error) {
            return "refused: " + error;
        }
        if (bytes.hasRemaining()) {
            return bytes.remaining() + " bytes left over";
        }
        ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] out = new byte[written.remaining()];
        written.get(out);
        return HexFormat.of().formatHex(out);
    }
}
