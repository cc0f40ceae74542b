package logstore.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The format {@code logstore-jvm}: the same as {@code logstore}, read by Java. */
public final class LogSource implements TableProvider, DataSourceRegister {
    @Override
    public String shortName() {
        return "logstore-jvm";
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return describe(options.asCaseSensitiveMap(), null);
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new LogTable(describe(properties, schema));
    }

    /** The columns for these options; raises for an invalid option or schema. */
    private static StructType describe(Map<String, String> options, StructType schema) {
        ObjectNode request = Json.request("describe");
        request.set("options", Json.of(options));
        request.put("schema", schema == null ? null : schema.json());
        return (StructType) DataType.fromJson(Helper.askOnce(request).get("schema").asText());
    }

    private static final class LogTable implements SupportsRead {
        private final StructType schema;

        LogTable(StructType schema) {
            this.schema = schema;
        }

        /** Deprecated, but Spark's own tables of a source without a catalog define it, too. */
        @Override
        @Deprecated
        public StructType schema() {
            return schema;
        }

        @Override
        public String name() {
            return "logstore-jvm";
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new LogScanBuilder(schema, options.asCaseSensitiveMap());
        }
    }
}
