package kafkagroup.oracle;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.coordinator.common.runtime.CoordinatorEvent;
import org.apache.kafka.coordinator.common.runtime.CoordinatorEventProcessor;

/**
 * Runs the coordinator's events, and its background tasks, in the caller's thread.
 *
 * <p>A background task (an assignor, the resolution of a regular expression) starts when no event is
 * left: the request that caused it has then been answered, as it mostly is in a broker.
 */
final class EventQueue extends AbstractExecutorService implements CoordinatorEventProcessor {
    private final Deque<CoordinatorEvent> events = new ArrayDeque<>();
    private final Deque<Runnable> tasks = new ArrayDeque<>();
    private boolean runsAtOnce = false;
    private boolean isShutdown = false;

    /** Runs all events and tasks, and those that follow from them. */
    void run() {
        runEvents();
        for (Runnable task = tasks.poll(); task != null; task = tasks.poll()) {
            task.run();
            runEvents();
        }
    }

    private void runEvents() {
        for (CoordinatorEvent event = events.poll(); event != null; event = events.poll()) {
            try {
                event.run();
            } catch (Throwable error) {
                // As Apache's processor does: the event answers with the error.
                event.complete(error);
            }
        }
    }

    /** Runs an action that waits for the events that it causes. */
    void runWithEvents(Runnable action) {
        runsAtOnce = true;
        action.run();
        runsAtOnce = false;
    }

    @Override
    public void enqueueLast(CoordinatorEvent event) {
        events.addLast(event);
        onEvent();
    }

    @Override
    public void enqueueFirst(CoordinatorEvent event) {
        events.addFirst(event);
        onEvent();
    }

    private void onEvent() {
        if (runsAtOnce) {
            // Events that are added meanwhile wait for their turn.
            runsAtOnce = false;
            runEvents();
            runsAtOnce = true;
        }
    }

    @Override
    public void execute(Runnable task) {
        tasks.addLast(task);
    }

    @Override
    public void close() {
        shutdownNow();
    }

    @Override
    public void shutdown() {
        isShutdown = true;
    }

    @Override
    public List<Runnable> shutdownNow() {
        shutdown();
        events.clear();
        tasks.clear();
        return List.of();
    }

    @Override
    public boolean isShutdown() {
        return isShutdown;
    }

    @Override
    public boolean isTerminated() {
        return isShutdown;
    }

    @Override
    public boolean awaitTermination(long timeout, TimeUnit unit) {
        return isShutdown;
    }
}
