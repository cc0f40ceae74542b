package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Counts, first and last offsets, determined by the plan of a scan: nothing is read. */
final class LogCounts implements LocalScan {
    private final StructType schema;
    private final Object[] values;

    private LogCounts(StructType schema, Object[] values) {
        this.schema = schema;
        this.values = values;
    }

    /** Null if the plan does not determine them, because of actual or possible gaps. */
    static LogCounts of(LogScan scan, List<String> functions) {
        JsonNode counted = scan.counts();
        if (counted == null) {
            return null;
        }
        StructType schema = new StructType();
        Object[] values = new Object[functions.size()];
        for (int i = 0; i < values.length; i++) {
            JsonNode value = counted.get(functions.get(i));
            schema = schema.add(functions.get(i) + i, DataTypes.LongType);
            values[i] = value.isNull() ? null : (Object) value.asLong();
        }
        return new LogCounts(schema, values);
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public InternalRow[] rows() {
        return new InternalRow[] {new GenericInternalRow(values)};
    }

    @Override
    public String description() {
        return "logstore-jvm: counted by the plan";
    }
}
