package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/**
 * The micro-batches of one query. Python plans them, with the reader of the format {@code logstore}, so that
 * offsets, checkpoints and all decisions are the same.
 */
final class LogStream implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private final StructType schema;
    private final String options;
    private final Helper helper = Helper.take();
    private LogOffset reported;
    /** The lag of the batch that was planned last. */
    private long lag;

    LogStream(StructType schema, Map<String, String> options) {
        this.schema = schema;
        this.options = Json.of(options).toString();
        try {
            ask(request("stream").put("schema", schema.json()));
        } catch (RuntimeException error) {
            helper.giveBack();
            throw error;
        }
    }

    private ObjectNode request(String operation) {
        ObjectNode request = Json.request(operation);
        request.set("options", Json.parse(options));
        return request;
    }

    private JsonNode ask(ObjectNode request) {
        return helper.ask(request);
    }

    /** An offset is the JSON text that the format {@code logstore} writes into checkpoints. */
    private static final class LogOffset extends Offset {
        private final String json;

        LogOffset(String json) {
            this.json = json;
        }

        @Override
        public String json() {
            return json;
        }
    }

    private LogOffset offset(ObjectNode request) {
        JsonNode found = ask(request).get("offset");
        return found.isNull() ? null : new LogOffset(found.asText());
    }

    @Override
    public Offset initialOffset() {
        return offset(Json.request("initial"));
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new LogOffset(json);
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("latestOffset(start, limit) is called instead");
    }

    /** Python applies the limits of the options; Spark's own counts only if it wants everything. */
    @Override
    public ReadLimit getDefaultReadLimit() {
        return ReadLimit.maxRows(Long.MAX_VALUE);
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        ObjectNode request = Json.request("latest").put("start", start.json());
        request.put("all", limit instanceof ReadAllAvailable);
        LogOffset end = offset(request);
        reported = offset(Json.request("report"));
        return end.json.equals(start.json()) ? start : end;
    }

    @Override
    public Offset reportLatestOffset() {
        return reported;
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        ask(Json.request("available now"));
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        JsonNode plan = ask(Json.request("batch").put("start", start.json()).put("end", end.json()));
        lag = plan.get("lag").asLong();
        return Task.all(plan, -1);
    }

    CustomTaskMetric[] driverMetrics() {
        return new CustomTaskMetric[] {Metrics.of("logstoreLag", lag)};
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(schema, options);
    }

    @Override
    public void commit(Offset end) {
        ask(Json.request("commit").put("end", end.json()));
    }

    @Override
    public void stop() {
        helper.close();
    }

    /** The lag of the consumed offsets, in the form of Spark's Kafka source. */
    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
        Map<String, String> metrics = new HashMap<>();
        if (consumed.isPresent() && reported != null) {
            ObjectNode request = Json.request("lag").put("read", consumed.get().json());
            JsonNode lag = ask(request.put("end", reported.json)).get("lag");
            lag.fieldNames().forEachRemaining(name -> metrics.put(name, lag.get(name).asText()));
        }
        return metrics;
    }
}
