package logstore.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes the readers of tasks, in the executors. */
final class ReaderFactory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;

    private final StructType schema;
    private final String options;
    private final String python = Helper.pythonOfWorkers();

    ReaderFactory(StructType schema, String options) {
        this.schema = schema;
        this.options = options;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        throw new UnsupportedOperationException("logstore-jvm reads columns");
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
        Helper.usePython(python);
        return new TaskReader((Task) partition, schema, options);
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }
}
