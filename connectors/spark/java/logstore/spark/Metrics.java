package logstore.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What Spark's web page shows of a scan. */
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

    static CustomMetric[] supported() {
        return new CustomMetric[] {new BytesRead(), new RangesOfPython()};
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
