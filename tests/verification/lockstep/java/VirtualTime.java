package kafkagroup.oracle;

import java.util.Comparator;
import java.util.PriorityQueue;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.timer.Timer;
import org.apache.kafka.server.util.timer.TimerTask;
import org.apache.kafka.server.util.timer.TimerTaskEntry;

/** A clock that stands still between commands, and the timer that follows it. */
final class VirtualTime implements Time, Timer {
    /** Not zero: to Kafka, some timestamps below or at zero mean that there is none. */
    private static final long EPOCH_MS = 1_600_000_000_000L;

    private record Scheduled(TimerTaskEntry entry, long sequence) {}

    private final PriorityQueue<Scheduled> tasks = new PriorityQueue<>(
        Comparator.<Scheduled>comparingLong(task -> task.entry().expirationMs)
            .thenComparingLong(Scheduled::sequence));
    private long nowMs = EPOCH_MS;
    private long sequence = 0;

    @Override
    public void add(TimerTask task) {
        // The entry registers itself with the task, which needs it to cancel.
        tasks.add(new Scheduled(new TimerTaskEntry(task, nowMs + task.delayMs), sequence++));
    }

    /** Runs the next task that is due at `untilMs`, at its own time. Returns whether there was one. */
    boolean runNext(long untilMs) {
        if (nextMs() > untilMs) {
            return false;
        }
        TimerTaskEntry next = tasks.remove().entry();
        nowMs = Math.max(nowMs, next.expirationMs);
        next.timerTask.run();
        return true;
    }

    /** Returns the time of the next task; `Long.MAX_VALUE` without one. */
    long nextMs() {
        while (!tasks.isEmpty() && tasks.peek().entry().cancelled()) {
            tasks.remove();
        }
        return tasks.isEmpty() ? Long.MAX_VALUE : tasks.peek().entry().expirationMs;
    }

    /** Moves the clock without running tasks. */
    void moveTo(long ms) {
        nowMs = ms;
    }

    @Override
    public boolean advanceClock(long timeoutMs) {
        throw new UnsupportedOperationException("only commands let time pass");
    }

    @Override
    public int size() {
        return tasks.size();
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return nowMs * 1_000_000;
    }

    @Override
    public void sleep(long ms) {
        throw new UnsupportedOperationException("the coordinator's thread must not sleep");
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException("the coordinator's thread must not wait");
    }

    @Override
    public void close() {
        tasks.clear();
    }
}
