package kafkagroup.oracle;

import java.security.Provider;
import java.security.SecureRandomSpi;
import java.security.Security;
import java.util.Random;

/**
 * A source of `SecureRandom` that starts from a seed. Member ids are `java.util.UUID`s, which are
 * made from that.
 */
public final class SeededRandom extends SecureRandomSpi {
    private static final Random RANDOM = new Random();

    /** Must run before the first UUID: its class keeps its `SecureRandom`. */
    static void install() {
        Security.insertProviderAt(new SeededProvider(), 1);
    }

    static void seed(long seed) {
        RANDOM.setSeed(seed);
    }

    @Override
    protected void engineNextBytes(byte[] bytes) {
        RANDOM.nextBytes(bytes);
    }

    @Override
    protected byte[] engineGenerateSeed(int count) {
        byte[] bytes = new byte[count];
        RANDOM.nextBytes(bytes);
        return bytes;
    }

    @Override
    protected void engineSetSeed(byte[] seed) {
        // Only commands set the seed.
    }

    private static final class SeededProvider extends Provider {
        SeededProvider() {
            super("Seeded", "1", "random numbers from a seed");
            put("SecureRandom.Seeded", SeededRandom.class.getName());
        }
    }
}
