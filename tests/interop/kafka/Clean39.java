/* The same as Clean.java, with the classes of Kafka 3.9.
 *
 * Arguments: milliseconds for "now", delete.retention.ms, segment.bytes, bytes of the offset map, and then directories,
 * each with the first dirty offset after a colon.  Prints for each: the new first dirty offset, seconds. */

import java.io.File;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import kafka.log.Cleaner;
import kafka.log.LogToClean;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.internals.utils.Throttler;
import scala.Option;
import scala.runtime.BoxedUnit;

public class Clean39 {
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
        LogConfig config = new LogConfig(settings);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        for (int i = 4; i < arguments.length; i++) {
            int colon = arguments[i].lastIndexOf(':');
            File directory = new File(arguments[i].substring(0, colon));
            long firstDirty = Long.parseLong(arguments[i].substring(colon + 1));
            UnifiedLog log = UnifiedLog.apply(
                directory, config, 0L, 0L, scheduler, new BrokerTopicStats(false), time, 900000,
                new ProducerStateManagerConfig(86400000, false), 600000, new LogDirFailureChannel(1), false,
                Option.empty(), true, new ConcurrentHashMap<>(), false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
            log.updateHighWatermark(log.logEndOffset());
            long begun = System.nanoTime();
            OffsetMap map = new SkimpyOffsetMap(Integer.parseInt(arguments[3]), "MD5");
            Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
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
