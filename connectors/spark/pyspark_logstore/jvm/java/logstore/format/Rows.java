package logstore.format;

import java.util.Arrays;

/** Decoded records, as columns. Keys, values and headers are positions in {@link #data}. */
public final class Rows {
    /** Optional columns; the offset is always kept. Times include their type. */
    public static final int TIMES = 1;

    public static final int KEYS = 2;
    public static final int VALUES = 4;
    public static final int HEADERS = 8;
    public static final int ALL = 15;

    /** The timestamp in magic 0, and of a record whose producer has set none. */
    public static final long NO_TIMESTAMP = -1;

    /** The array that positions of keys, values and headers refer to. */
    public byte[] data;

    public int count;
    public long[] offset;
    /** Milliseconds since 1970, or {@link #NO_TIMESTAMP}. */
    public long[] timestamp;
    /** -1 none (magic 0), 0 set by the producer, 1 set by the log. */
    public byte[] timestampType;
    public int[] keyPos;
    /** In bytes; -1 is null. The same applies to values. */
    public int[] keyLength;
    public int[] valuePos;
    public int[] valueLength;
    public int[] headerPos;
    public int[] headerCount;

    private final int columns;

    public Rows(int capacity, int columns) {
        this.columns = columns;
        offset = new long[0];
        timestamp = new long[0];
        timestampType = new byte[0];
        keyPos = new int[0];
        keyLength = new int[0];
        valuePos = new int[0];
        valueLength = new int[0];
        headerPos = new int[0];
        headerCount = new int[0];
        reserve(capacity);
    }

    public int capacity() {
        return offset.length;
    }

    /** Whether a column is kept. Arrays of other columns are not used. */
    boolean keeps(int column) {
        return (columns & column) != 0;
    }

    /** Make room for this many rows in all. */
    void reserve(int capacity) {
        if (capacity <= offset.length) {
            return;
        }
        offset = Arrays.copyOf(offset, capacity);
        if (keeps(TIMES)) {
            timestamp = Arrays.copyOf(timestamp, capacity);
            timestampType = Arrays.copyOf(timestampType, capacity);
        }
        if (keeps(KEYS)) {
            keyPos = Arrays.copyOf(keyPos, capacity);
            keyLength = Arrays.copyOf(keyLength, capacity);
        }
        if (keeps(VALUES)) {
            valuePos = Arrays.copyOf(valuePos, capacity);
            valueLength = Arrays.copyOf(valueLength, capacity);
        }
        if (keeps(HEADERS)) {
            headerPos = Arrays.copyOf(headerPos, capacity);
            headerCount = Arrays.copyOf(headerCount, capacity);
        }
    }
}
