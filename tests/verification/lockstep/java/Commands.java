package kafkagroup.oracle;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;

/**
 * Decodes the commands of a frame, runs them in order, and encodes the responses that completed.
 *
 * <p>A command is one byte and its fields; integers are big-endian, strings and bytes have a length
 * of 4 bytes.
 */
final class Commands {
    private static final byte RESET = 1; // seed: 8 bytes, settings: count, (name, value)
    private static final byte SUBMIT = 2; // ticket: 4 bytes, request: bytes
    private static final byte ADVANCE = 3; // milliseconds: 8 bytes
    private static final byte SET_TOPICS = 4; // count, (name, id: 16 bytes, partitions: 4 bytes)
    private static final byte RELOAD = 5;

    private World world;

    /**
     * Returns the milliseconds until the next timer (8 bytes), a count (4 bytes), and for each
     * response its ticket (4 bytes) and its bytes.
     */
    byte[] run(ByteBuffer frame) throws IOException {
        while (frame.hasRemaining()) {
            byte command = frame.get();
            switch (command) {
                case RESET -> reset(frame.getLong(), settings(frame));
                case SUBMIT -> world.submit(frame.getInt(), ByteBuffer.wrap(bytes(frame)));
                case ADVANCE -> world.advance(frame.getLong());
                case SET_TOPICS -> world.setTopics(topics(frame));
                case RELOAD -> world.reload();
                default -> throw new IllegalArgumentException("no command " + command);
            }
        }
        return encode(world.untilNextTimer(), world.takeCompleted());
    }

    private void reset(long seed, Map<String, String> settings) {
        SeededRandom.seed(seed);
        world = new World(settings);
    }

    private static Map<String, String> settings(ByteBuffer frame) {
        Map<String, String> settings = new HashMap<>();
        for (int left = frame.getInt(); left > 0; left--) {
            settings.put(string(frame), string(frame));
        }
        return settings;
    }

    private static Map<String, Topics.Topic> topics(ByteBuffer frame) {
        Map<String, Topics.Topic> topics = new LinkedHashMap<>();
        for (int left = frame.getInt(); left > 0; left--) {
            String name = string(frame);
            Uuid id = new Uuid(frame.getLong(), frame.getLong());
            topics.put(name, new Topics.Topic(id, frame.getInt()));
        }
        return topics;
    }

    private static byte[] bytes(ByteBuffer frame) {
        byte[] bytes = new byte[frame.getInt()];
        frame.get(bytes);
        return bytes;
    }

    private static String string(ByteBuffer frame) {
        return new String(bytes(frame), StandardCharsets.UTF_8);
    }

    private static byte[] encode(long untilNextTimer, List<World.Completed> responses)
        throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream output = new DataOutputStream(bytes);
        output.writeLong(untilNextTimer);
        output.writeInt(responses.size());
        for (World.Completed response : responses) {
            byte[] body = response.bytes();
            output.writeInt(response.ticket());
            output.writeInt(body.length);
            output.write(body);
        }
        return bytes.toByteArray();
    }
}
