package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads tasks as Spark's executors do, without a Spark around it: a line of JSON with a task, the schema and
 * the options of the source makes a line with the rows and the error. With `pause` it says so after so many
 * batches, and waits for a line. java_tasks.py asks it.
 */
public final class TaskCheck {
    private static final HexFormat HEX = HexFormat.of();
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            answer(Json.parse(line), in);
        }
    }

    private static void answer(JsonNode request, BufferedReader in) throws Exception {
        StructType schema = (StructType) DataType.fromJson(request.get("schema").asText());
        Task task = new Task(request.get("task"), -1);
        int pause = request.get("pause").asInt();
        ObjectNode reply = Json.MAPPER.createObjectNode();
        ArrayNode rows = reply.putArray("rows");
        TaskReader reader = new TaskReader(task, schema, request.get("options").toString());
        try {
            for (int n = 0; reader.next(); n++) {
                ColumnarBatch batch = reader.get();
                for (int i = 0; i < batch.numRows(); i++) {
                    row(batch.getRow(i), rows.addArray());
                }
                if (n == pause) {
                    OUT.println("{\"paused\": " + rows.size() + "}");
                    in.readLine();
                }
            }
        } catch (Exception | Error error) {
            reply.put("kind", error.getClass().getName());
            reply.put("error", String.valueOf(error.getMessage()));
        } finally {
            for (CustomTaskMetric metric : reader.currentMetricsValues()) {
                reply.put(metric.name(), metric.value());
            }
            reader.close();
        }
        OUT.println(reply);
    }

    /** All columns of the source, in its order. */
    private static void row(InternalRow row, ArrayNode to) {
        to.add(row.getLong(4));
        to.add(row.getInt(3));
        to.add(hex(row, 0));
        to.add(hex(row, 1));
        if (row.isNullAt(5)) {
            to.addNull();
        } else {
            to.add(row.getLong(5));
        }
        to.add(row.getInt(6));
        if (row.isNullAt(7)) {
            to.addNull();
            return;
        }
        ArrayNode headers = to.addArray();
        ArrayData given = row.getArray(7);
        for (int i = 0; i < given.numElements(); i++) {
            InternalRow header = given.getStruct(i, 2);
            ArrayNode pair = headers.addArray();
            pair.add(header.isNullAt(0) ? null : header.getUTF8String(0).toString());
            pair.add(hex(header, 1));
        }
    }

    private static String hex(InternalRow row, int column) {
        return row.isNullAt(column) ? null : HEX.formatHex(row.getBinary(column));
    }
}
