// Apache Kafka's group coordinator as a program: requests and time come in over standard input,
// responses go out over standard output. tests/verification/lockstep/apache.py starts it and speaks with it.
//
// Standard input is a sequence of frames: a length of 4 bytes, then commands (see Commands). Each
// frame is answered by one frame: a length of 4 bytes, then a byte that is 0 and the responses that
// completed, or 1 and the text of a failure. The program ends with its input.

package kafkagroup.oracle;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

public final class Main {
    private static final byte OK = 0;
    private static final byte FAILED = 1;

    public static void main(String[] arguments) throws IOException {
        SeededRandom.install();
        DataInputStream input = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream output = new DataOutputStream(new BufferedOutputStream(System.out));
        // A library that prints would break the framing.
        System.setOut(new PrintStream(System.err));
        Commands commands = new Commands();
        for (byte[] frame = read(input); frame != null; frame = read(input)) {
            byte status = OK;
            byte[] answer;
            try {
                answer = commands.run(ByteBuffer.wrap(frame));
            } catch (Exception | LinkageError error) {
                status = FAILED;
                StringWriter text = new StringWriter();
                error.printStackTrace(new PrintWriter(text));
                answer = text.toString().getBytes(StandardCharsets.UTF_8);
            }
            output.writeInt(1 + answer.length);
            output.writeByte(status);
            output.write(answer);
            output.flush();
        }
    }

    /** Returns null at the end of the input. */
    private static byte[] read(DataInputStream input) throws IOException {
        try {
            byte[] frame = new byte[input.readInt()];
            input.readFully(frame);
            return frame;
        } catch (EOFException end) {
            return null;
        }
    }

    private Main() {}
}
