/* Appends to logs with the classes that a broker writes its segments with:
   java Segments.java INPUT

   INPUT has, big-endian: the number of logs, and for each its directory (as
   DataInput.readUTF), segment.bytes, segment.ms, segment.index.bytes,
   index.interval.bytes (int, long, int, int), and the number of steps. A step is a byte:
   0, append: the time of the clock, the first and the last offset, the largest timestamp
   (long), the number of bytes (int), and batches with their offsets;
   1, close and open again: the time of the clock (long).
   In the end each log is closed. */

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.RollParams;

public class Segments {
    private static final class Clock implements Time {
        private long now;

        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            now += ms;
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) {
            throw new UnsupportedOperationException();
        }
    }

    private final DataInputStream in;
    private final Clock clock = new Clock();
    private final List<LogSegment> segments = new ArrayList<>();
    private final File directory;
    private final LogConfig config;

    private Segments(DataInputStream in) throws IOException {
        this.in = in;
        directory = new File(in.readUTF());
        Files.createDirectories(directory.toPath());
        config = new LogConfig(Map.of(
            LogConfig.INTERNAL_SEGMENT_BYTES_CONFIG, in.readInt(),
            "segment.ms", in.readLong(),
            "segment.index.bytes", in.readInt(),
            "index.interval.bytes", in.readInt()));
    }

    private void run() throws IOException {
        for (int left = in.readInt(); left > 0; left--) {
            if (in.readByte() == 0) {
                append();
            } else {
                clock.now = in.readLong();
                open();
            }
        }
        close();
    }

    private LogSegment last() {
        return segments.get(segments.size() - 1);
    }

    private void append() throws IOException {
        clock.now = in.readLong();
        long first = in.readLong();
        long last = in.readLong();
        long largest = in.readLong();
        byte[] bytes = new byte[in.readInt()];
        in.readFully(bytes);
        if (segments.isEmpty()) {
            begin(first);
        }
        RollParams params = new RollParams(
            config.maxSegmentMs(), config.segmentSize(), largest, last, bytes.length, clock.now);
        if (last().shouldRoll(params)) {
            last().onBecomeInactiveSegment();
            begin(first);
        }
        last().append(last, MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)));
    }

    private void begin(long offset) throws IOException {
        segments.add(LogSegment.open(
            directory, offset, config, clock, config.initFileSize(), config.preallocate));
    }

    private void open() throws IOException {
        close();
        for (int at = 0; at < segments.size(); at++) {
            long offset = segments.get(at).baseOffset();
            segments.set(at, LogSegment.open(directory, offset, config, clock, true, 0, false, ""));
        }
        if (!segments.isEmpty()) {
            last().resizeIndexes(config.maxIndexSize);
        }
    }

    private void close() throws IOException {
        if (!segments.isEmpty()) {
            // As a log does; from 4.4 on, a segment that is closed trims no index itself.
            last().onBecomeInactiveSegment();
        }
        for (LogSegment segment : segments) {
            segment.close();
        }
    }

    public static void main(String[] arguments) throws IOException {
        try (DataInputStream in = new DataInputStream(
                new BufferedInputStream(Files.newInputStream(Path.of(arguments[0]))))) {
            for (int left = in.readInt(); left > 0; left--) {
                new Segments(in).run();
            }
        }
    }
}
