package logstore.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.LongStream;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Metrics of a scan on Spark's web page. */
public final class Metrics {
    private Metrics() {}

    /** Bytes of log files that were read and checked. */
    public static final class BytesRead extends CustomSumMetric {
        @Override
        public String name() {
            return "logstoreBytesRead";
        }

        @Override
        public String description() {
            return "bytes of log files read";
        }
    }

    /** Ranges that were left to Python: damage, changes of the log, formats that Java does not know. */
    public static final class RangesOfPython extends CustomSumMetric {
        @Override
        public String name() {
            return "logstoreRangesOfPython";
        }

        @Override
        public String description() {
            return "ranges of offsets read by Python";
        }
    }

    /** The lag of a stream: the largest number of offsets that a batch leaves unread in a partition. */
    public static final class Lag implements CustomMetric {
        @Override
        public String name() {
            return "logstoreLag";
        }

        @Override
        public String description() {
            return "offsets behind the end after this batch, of the slowest partition";
        }

        @Override
        public String aggregateTaskMetrics(long[] values) {
            return String.valueOf(LongStream.of(values).max().orElse(0));
        }
    }

    static CustomMetric[] supported(boolean isStream) {
        List<CustomMetric> metrics = new ArrayList<>(List.of(new BytesRead(), new RangesOfPython()));
        if (isStream) {
            metrics.add(new Lag());
        }
        return metrics.toArray(new CustomMetric[0]);
    }

    static CustomTaskMetric of(String name, long value) {
        return new CustomTaskMetric() {
            @Override
            public String name() {
                return name;
            }

            @Override
            public long value() {
                return value;
            }
        };
    }
}
