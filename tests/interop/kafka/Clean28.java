/* The same as Clean.java, with the classes of Kafka 2.8.
 *
 * Arguments: milliseconds for "now", delete.retention.ms, segment.bytes, bytes of the offset map, and then directories,
 * each with the first dirty offset after a colon.  Prints for each: the new first dirty offset, seconds. */

import java.io.File;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import kafka.log.*;
import kafka.server.BrokerTopicStats;
import kafka.server.LogDirFailureChannel;
import kafka.utils.KafkaScheduler;
import kafka.utils.Throttler;
import org.apache.kafka.common.utils.Time;
import scala.collection.immutable.Set$;
import scala.runtime.BoxedUnit;

public class Clean28 {
    private static Time at(long now) {
        return new Time() {
            public long milliseconds() { return now; }
            public long nanoseconds() { return System.nanoTime(); }
            public void sleep(long ms) { Time.SYSTEM.sleep(ms); }
            public void waitObject(Object object, Supplier<Boolean> condition, long deadline)
                throws InterruptedException {
                Time.SYSTEM.waitObject(object, condition, deadline);
            }
            public org.apache.kafka.common.utils.Timer timer(long timeout) { return Time.SYSTEM.timer(timeout); }
        };
    }

    public static void main(String[] arguments) throws Exception {
        long now = Long.parseLong(arguments[0]);
        Time time = at(now);
        Map<String, String> settings = new HashMap<>();
        settings.put("cleanup.policy", "compact");
        settings.put("delete.retention.ms", arguments[1]);
        settings.put("segment.bytes", arguments[2]);
        settings.put("index.interval.bytes", System.getProperty("index.interval.bytes", "4096"));
        settings.put("file.delete.delay.ms", "0");
        settings.put("retention.ms", "-1");
        LogConfig config = new LogConfig(settings, Set$.MODULE$.<String>empty());
        KafkaScheduler scheduler = new KafkaScheduler(1, "cleaner-", true);
        scheduler.startup();
        for (int i = 4; i < arguments.length; i++) {
            int colon = arguments[i].lastIndexOf(':');
            File directory = new File(arguments[i].substring(0, colon));
            long firstDirty = Long.parseLong(arguments[i].substring(colon + 1));
            Log log = Log.apply(
                directory, config, 0L, 0L, scheduler, new BrokerTopicStats(), time, 86400000, 600000,
                new LogDirFailureChannel(1), false, true);
            log.updateHighWatermark(log.logEndOffset());
            long begun = System.nanoTime();
            OffsetMap map = new SkimpyOffsetMap(Integer.parseInt(arguments[3]), "MD5");
            Throttler throttler = new Throttler(Double.MAX_VALUE, 300, true, "cleaner", "bytes", Time.SYSTEM);
            Cleaner cleaner = new Cleaner(
                0, map, 524288, 1 << 30, 0.9, throttler, time, partition -> BoxedUnit.UNIT);
            long end = log.activeSegment().baseOffset();
            long cleaned = firstDirty;
            while (cleaned < end) {
                LogToClean part = new LogToClean(log.topicPartition(), log, cleaned, end, true);
                cleaned = (Long) cleaner.doClean(part, now)._1();
            }
            System.out.println(cleaned + " " + (System.nanoTime() - begun) / 1e9);
            log.close();
        }
        scheduler.shutdown();
    }
}
