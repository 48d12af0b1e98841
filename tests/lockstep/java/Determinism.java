package kafkagroup.oracle;

import java.lang.reflect.Field;
import java.security.Provider;
import java.security.SecureRandomSpi;
import java.security.Security;
import java.util.Random;
import sun.misc.Unsafe;

/** Removes what differs between two runs of a JVM: random ids, and the order of `Set.of`. */
final class Determinism {
    private static final Random RANDOM = new Random(0);

    /** Must run before the first UUID: `java.util.UUID` keeps its `SecureRandom`. */
    static void installSeededRandom() {
        Security.insertProviderAt(new SeededProvider(), 1);
    }

    static void seed(long seed) {
        RANDOM.setSeed(seed);
    }

    /**
     * `Set.of` and `Map.of` iterate from a place, and in a direction, that each JVM draws from its
     * clock. Must run before their iterators are compiled, since compilers copy static finals.
     */
    static void fixIterationOrders() throws ReflectiveOperationException {
        Field unsafeField = Unsafe.class.getDeclaredField("theUnsafe");
        unsafeField.setAccessible(true);
        Unsafe unsafe = (Unsafe) unsafeField.get(null);
        Class<?> collections = Class.forName("java.util.ImmutableCollections");
        Field salt = collections.getDeclaredField("SALT32L");
        unsafe.putLong(unsafe.staticFieldBase(salt), unsafe.staticFieldOffset(salt), 0L);
        Field reverse = collections.getDeclaredField("REVERSE");
        unsafe.putBoolean(unsafe.staticFieldBase(reverse), unsafe.staticFieldOffset(reverse), false);
    }

    private static final class SeededProvider extends Provider {
        SeededProvider() {
            super("Seeded", "1", "random numbers from a seed");
            put("SecureRandom.Seeded", SeededRandom.class.getName());
        }
    }

    /** Public, because `Provider` creates it. */
    public static final class SeededRandom extends SecureRandomSpi {
        @Override
        protected void engineSetSeed(byte[] seed) {
            // The seed of the world is the only one.
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
    }

    private Determinism() {}
}
