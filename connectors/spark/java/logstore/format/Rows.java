package logstore.format;

import java.util.Arrays;

/** Decoded records, as columns. Keys, values and headers are places in {@link #data}. */
public final class Rows {
    /** What the places refer to. */
    public byte[] data;

    public int count;
    public long[] offset;
    /** Milliseconds since 1970; -1 in magic 0. */
    public long[] timestamp;
    /** -1 none (magic 0), 0 set by the producer, 1 set by the log. */
    public byte[] timestampType;
    public int[] keyPos;
    /** Bytes; -1 is null. So are the lengths of values. */
    public int[] keyLength;
    public int[] valuePos;
    public int[] valueLength;
    public int[] headerPos;
    public int[] headerCount;

    public Rows(int capacity) {
        offset = new long[capacity];
        timestamp = new long[capacity];
        timestampType = new byte[capacity];
        keyPos = new int[capacity];
        keyLength = new int[capacity];
        valuePos = new int[capacity];
        valueLength = new int[capacity];
        headerPos = new int[capacity];
        headerCount = new int[capacity];
    }

    public int capacity() {
        return offset.length;
    }

    /** Make room for this many rows in all. */
    void reserve(int capacity) {
        if (capacity > offset.length) {
            offset = Arrays.copyOf(offset, capacity);
            timestamp = Arrays.copyOf(timestamp, capacity);
            timestampType = Arrays.copyOf(timestampType, capacity);
            keyPos = Arrays.copyOf(keyPos, capacity);
            keyLength = Arrays.copyOf(keyLength, capacity);
            valuePos = Arrays.copyOf(valuePos, capacity);
            valueLength = Arrays.copyOf(valueLength, capacity);
            headerPos = Arrays.copyOf(headerPos, capacity);
            headerCount = Arrays.copyOf(headerCount, capacity);
        }
    }
}
