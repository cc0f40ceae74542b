package logstore.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import logstore.format.Decoder;
import logstore.format.InvalidBatchException;
import logstore.format.Rows;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads the records of a task.
 *
 * <p>It reads the planned files as long as they are unchanged and the decoder accepts their batches. The rest
 * of a range is left to Python otherwise, which finds the reason: damage, a log that was cut, a missing
 * file, a format that Java does not know.
 */
final class TaskReader implements PartitionReader<ColumnarBatch> {
    private static final int ROWS = 4096;
    private static final int BUFFER_BYTES = 1 << 20;

    private final Task task;
    private final StructType schema;
    private final String options;
    private final boolean hasTimestamp;
    private final Rows rows;
    private final Vectors.Place place = new Vectors.Place();
    private final ColumnarBatch batch;

    private long rowsLeft;
    private int rangeNumber = -1;
    private Task.Range range;
    private int pieceNumber;
    private Task.Piece piece;
    private FileChannel file;
    private Decoder decoder;
    /** The next offset to deliver. */
    private long offset;
    /** Valid bytes in the buffer; file position after them. */
    private byte[] buffer = new byte[BUFFER_BYTES];
    private int limit;
    private long filePos;

    private Rest rest;
    private ColumnarBatch current;
    private long bytesRead;
    private long rangesOfPython;

    TaskReader(Task task, StructType schema, String options) {
        this.task = task;
        this.schema = schema;
        this.options = options;
        this.hasTimestamp = Arrays.asList(schema.fieldNames()).contains("timestamp");
        this.rows = new Rows(ROWS, columns(schema));
        this.rowsLeft = task.limit < 0 ? Long.MAX_VALUE : task.limit;
        ColumnVector[] vectors = new ColumnVector[schema.length()];
        for (int i = 0; i < vectors.length; i++) {
            vectors[i] = Vectors.of(schema.apply(i), rows, place);
        }
        batch = new ColumnarBatch(vectors);
    }

    /** The columns to keep of the records. */
    private static int columns(StructType schema) {
        int columns = 0;
        for (String name : schema.fieldNames()) {
            switch (name) {
                case "key":
                    columns |= Rows.KEYS;
                    break;
                case "value":
                    columns |= Rows.VALUES;
                    break;
                case "timestamp", "timestampType":
                    columns |= Rows.TIMES;
                    break;
                case "headers":
                    columns |= Rows.HEADERS;
                    break;
                default: // is always known
            }
        }
        return columns;
    }

    @Override
    public boolean next() throws IOException {
        while (rowsLeft > 0) {
            if (rest != null) {
                if (rest.next()) {
                    return deliver(rest.batch, rest.batch.numRows());
                }
                // Cleared first: if Python reports an error, the process does not belong to this task any more.
                Rest done = rest;
                rest = null;
                range = null;
                done.close();
            }
            if (range == null && !nextRange()) {
                return false;
            }
            if (rest == null && decode()) {
                return deliver(batch, rows.count);
            }
        }
        return false;
    }

    private boolean deliver(ColumnarBatch delivered, int count) {
        int n = (int) Math.min(count, rowsLeft);
        rowsLeft -= n;
        delivered.setNumRows(n);
        current = delivered;
        return true;
    }

    private boolean nextRange() {
        if (++rangeNumber >= task.ranges.size()) {
            return false;
        }
        range = task.ranges.get(rangeNumber);
        place.topic = UTF8String.fromString(range.topic);
        place.partition = range.partition;
        offset = range.start;
        if (range.pieces == null) {
            leave();
            return true;
        }
        decoder = new Decoder(range.decompressedMax);
        decoder.stopsAtTransactions = range.stopsAtTransactions;
        decoder.aborted = range.aborted;
        decoder.latest = range.start; // the plan begins at the batch with this offset
        pieceNumber = 0;
        piece = null;
        return true;
    }

    /**
     * Leave the rest of the range to Python.
     *
     * <p>No checksum covers an offset: if one was changed, the batch that shows it may precede the next offset
     * to deliver, and a reader that begins there would miss it. So Python reads the range from its start, and
     * leaves out delivered records.
     */
    private void leave() {
        closeFile();
        rangesOfPython++;
        ObjectNode request = Json.request("read")
                .put("task", task.planned)
                .put("range", rangeNumber)
                .put("offset", offset)
                .put("schema", schema.json());
        request.set("options", Json.parse(options));
        rest = new Rest(request);
    }

    /** Decode the next rows of the range. False: there are none now; the caller checks the state again. */
    private boolean decode() {
        try {
            while (true) {
                if (piece == null && !nextPiece()) {
                    range = null;
                    return false;
                }
                Decoder.Stop stop;
                try {
                    stop = decoder.decode(buffer, limit, range.start, range.stop, rows);
                } catch (InvalidBatchException error) {
                    stop = null;
                }
                if (rows.count > 0) {
                    if (!fits()) {
                        leave();
                        return false;
                    }
                    offset = rows.offset[rows.count - 1] + 1;
                    return true; // the same reason will stop the next call
                }
                if (stop == Decoder.Stop.OFFSET && endsAtStop()) {
                    closeFile();
                    range = null;
                    return false;
                }
                if (stop != Decoder.Stop.END) { // also zeros: a piece has none after its last batch
                    leave();
                    return false;
                }
                if (!more()) {
                    if (!endsWell()) {
                        leave();
                        return false;
                    }
                    closeFile();
                }
            }
        } catch (IOException error) {
            leave(); // Python reports the error of the file
            return false;
        }
    }

    /** Whether all times fit into Spark's microseconds. */
    private boolean fits() {
        if (hasTimestamp) {
            long most = Long.MAX_VALUE / 1000;
            for (int i = 0; i < rows.count; i++) {
                long time = rows.timestamp[i];
                if (time > most || time < -most) {
                    return false;
                }
            }
        }
        return true;
    }

    private boolean nextPiece() throws IOException {
        if (pieceNumber >= range.pieces.size()) {
            return false;
        }
        piece = range.pieces.get(pieceNumber++);
        file = open(piece);
        if (pieceNumber == 1 || !piece.contiguous) {
            decoder.lastOffset = piece.before;
        }
        decoder.hasLast = false;
        decoder.contiguous = piece.contiguous;
        decoder.looksBehind = !piece.contiguous;
        decoder.isEnd = false;
        decoder.bound = piece.nextOffset;
        decoder.pos = 0;
        limit = 0;
        filePos = piece.position;
        return true;
    }

    /** Open the file of a piece, which retention may have renamed. */
    private static FileChannel open(Task.Piece piece) throws IOException {
        IOException first = null;
        for (String suffix : new String[] {"", ".deleted"}) {
            try {
                Path path = Path.of(piece.path + suffix);
                FileChannel file = FileChannel.open(path, StandardOpenOption.READ, LinkOption.NOFOLLOW_LINKS);
                try {
                    Object inode = Files.getAttribute(path, "unix:ino", LinkOption.NOFOLLOW_LINKS);
                    if (inode.equals(piece.inode)) {
                        return file;
                    }
                } catch (IOException | RuntimeException error) {
                    file.close();
                    throw error;
                }
                file.close();
            } catch (IOException error) {
                first = first == null ? error : first;
            } catch (InvalidPathException error) {
                // Java cannot represent the name in this locale.
                throw new IOException(error);
            }
        }
        throw first != null ? first : new IOException(piece.path + " was replaced by another file");
    }

    private void closeFile() {
        piece = null;
        if (file != null) {
            try {
                file.close();
            } catch (IOException error) {
                // The file was only read: nothing is lost.
            }
            file = null;
        }
    }

    /** Read more bytes after the ones that are not decoded yet. False: there are no more. */
    private boolean more() throws IOException {
        int kept = limit - decoder.pos;
        long left = piece.size - filePos;
        if (left <= 0 || decoder.needed - kept > left) {
            return false;
        }
        byte[] from = buffer;
        if (decoder.needed > buffer.length) {
            buffer = larger(decoder.needed);
        } else if (buffer.length > BUFFER_BYTES && decoder.needed <= BUFFER_BYTES) {
            buffer = new byte[Math.max(BUFFER_BYTES, kept)]; // the large batch is done
        }
        System.arraycopy(from, decoder.pos, buffer, 0, kept);
        decoder.pos = 0;
        limit = kept;
        int wanted = (int) Math.min(buffer.length - kept, left);
        while (wanted > 0) {
            int n = file.read(ByteBuffer.wrap(buffer, limit, wanted), filePos);
            if (n <= 0) {
                throw new IOException(piece.path + " became shorter");
            }
            limit += n;
            filePos += n;
            wanted -= n;
            bytesRead += n;
        }
        decoder.isEnd = filePos == piece.size;
        // Checked after the read: the bytes are the planned ones.
        if (!range.guard.holds() && !stands()) {
            throw new IOException("the log has changed");
        }
        return true;
    }

    /** Make room for a batch, whose length may be damaged. */
    private static byte[] larger(long bytes) throws IOException {
        try {
            return new byte[Math.toIntExact(bytes)];
        } catch (ArithmeticException | OutOfMemoryError error) {
            throw new IOException("not enough memory for a batch of " + bytes + " bytes", error);
        }
    }

    /** Ask Python whether the planned part of the log is still the same. */
    private boolean stands() {
        ObjectNode request = Json.request("stands").put("task", task.planned).put("range", rangeNumber);
        request.put("upto", range.upto);
        request.set("options", Json.parse(options));
        return Helper.askOnce(request).get("stands").asBoolean();
    }

    /** Whether the batch at the stop offset can follow the records before it. */
    private boolean endsAtStop() throws IOException {
        if (piece.contiguous) {
            return decoder.isPlausible(buffer, rows);
        }
        long left = piece.size - filePos;
        decoder.needed = Math.min(decoder.orderBytes(buffer), limit - decoder.pos + left);
        if (decoder.needed > limit - decoder.pos) {
            more();
        }
        return decoder.isPlausible(buffer, rows) && decoder.isInOrder(buffer, limit);
    }

    /** Whether the piece ends at the right offset. */
    private boolean endsWell() {
        if (decoder.pos < limit) {
            return false;
        }
        boolean isLast = pieceNumber == range.pieces.size();
        long end = Math.min(range.stop, piece.nextOffset);
        return decoder.lastOffset == Decoder.UNKNOWN
                || !(piece.contiguous || isLast)
                || decoder.lastOffset + 1 >= end;
    }

    @Override
    public ColumnarBatch get() {
        return current;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return new CustomTaskMetric[] {
            Metrics.of("logstoreBytesRead", bytesRead), Metrics.of("logstoreRangesOfPython", rangesOfPython)
        };
    }

    @Override
    public void close() {
        closeFile();
        if (rest != null) {
            rest.abandon();
        }
    }

    /** The rows of a range that Python reads. */
    private final class Rest {
        private final Helper helper = Helper.take();
        private final RootAllocator allocator = new RootAllocator();
        private final ArrowStreamReader reader;
        private ColumnarBatch batch;

        Rest(ObjectNode request) {
            reader = helper.rows(request, allocator);
        }

        boolean next() throws IOException {
            try {
                if (!reader.loadNextBatch()) {
                    return false;
                }
                if (batch == null) {
                    ColumnVector[] vectors = reader.getVectorSchemaRoot().getFieldVectors().stream()
                            .map((FieldVector vector) -> (ColumnVector) new ArrowColumnVector(vector))
                            .toArray(ColumnVector[]::new);
                    // The last vector only counts the rows of a scan without columns.
                    batch = new ColumnarBatch(Arrays.copyOf(vectors, schema.length()));
                }
                batch.setNumRows(reader.getVectorSchemaRoot().getRowCount());
                return true;
            } catch (IOException | RuntimeException error) {
                abandon();
                throw error;
            }
        }

        /** Call after the last batch: raises the error that Python reports. */
        void close() throws IOException {
            reader.close(false);
            allocator.close();
            try {
                helper.answer();
            } finally {
                helper.giveBack();
            }
        }

        /** Call before the last batch. */
        void abandon() {
            try {
                reader.close(false);
                allocator.close();
            } catch (IOException | RuntimeException error) {
                // The process ends in any case.
            }
            helper.close();
        }
    }
}
