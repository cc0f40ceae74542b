package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.Map;
import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** One scan; its plan is made once, at first use. */
final class LogScan implements Batch, SupportsReportStatistics, SupportsReportPartitioning {
    private final StructType schema;
    private final Map<String, String> options;
    private final ArrayNode conditions;
    private final Predicate[] pushed;
    private final int limit;
    private JsonNode plan;
    private LogStream stream;

    LogScan(
            StructType schema,
            Map<String, String> options,
            ArrayNode conditions,
            Predicate[] pushed,
            int limit) {
        this.schema = schema;
        this.options = options;
        this.conditions = conditions;
        this.pushed = pushed;
        this.limit = limit;
    }

    private synchronized JsonNode plan() {
        if (plan == null) {
            ObjectNode request = Json.request("plan").put("schema", schema.json());
            request.set("options", Json.of(options));
            request.set("conditions", conditions);
            plan = Helper.askOnce(request);
        }
        return plan;
    }

    /** Use the plan of another scan: it does not depend on columns and limit. */
    void takePlan(LogScan other) {
        plan = other.plan();
    }

    /** Count, min and max of the offsets; null if the plan does not determine them. */
    JsonNode counts() {
        JsonNode counts = plan().get("counts");
        return counts.isNull() ? null : counts;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        String what = "logstore-jvm " + options.getOrDefault("path", "");
        if (pushed.length > 0) {
            what += ", PushedFilters: " + Arrays.toString(pushed);
        }
        return limit < 0 ? what : what + ", PushedLimit: " + limit;
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        stream = new LogStream(schema, options);
        return stream;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return Task.all(plan(), limit);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(schema, Json.of(options).toString());
    }

    @Override
    public Statistics estimateStatistics() {
        JsonNode planned = plan();
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                JsonNode bytes = planned.get("bytes");
                return bytes.isNull() ? OptionalLong.empty() : OptionalLong.of(bytes.asLong());
            }

            @Override
            public OptionalLong numRows() {
                return OptionalLong.of(planned.get("offsets").asLong());
            }
        };
    }

    /**
     * If each task reads one partition, and none is read by two: a grouping by topic and partition needs no
     * exchange then. Otherwise nothing is reported: Spark would read the parts of a partition one after
     * the other.
     */
    @Override
    public Partitioning outputPartitioning() {
        if (stream == null && List.of(schema.fieldNames()).containsAll(List.of("topic", "partition"))) {
            JsonNode planned = plan();
            if (planned.get("by_partition").asBoolean()) {
                Expression[] keys = {Expressions.column("topic"), Expressions.column("partition")};
                return new KeyGroupedPartitioning(keys, planned.get("tasks").size());
            }
        }
        return new UnknownPartitioning(0);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return Metrics.supported(stream != null);
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
        return stream == null ? new CustomTaskMetric[0] : stream.driverMetrics();
    }
}
