package logstore.format;

import java.util.zip.CRC32;
import java.util.zip.CRC32C;

/**
 * Decodes batches of magic 0, 1 and 2 from a buffer, every checksum checked (docs/format.md).
 *
 * <p>It accepts the same batches as logstore's C core, after the same checks; every other batch is an
 * {@link InvalidBatchException}. It trusts nothing in the buffer. The checks are, in this order: framing,
 * checksum, structure, order of offsets.
 */
public final class Decoder {
    /** Stands for an unknown offset before the first batch. */
    public static final long UNKNOWN = -2;

    /** Why {@link #decode} returned. */
    public enum Stop {
        /** The next batch is not completely in the buffer, or there is none. */
        END,
        /** There are zeros in place of the next batch. */
        ZEROS,
        /** The next batch begins at the stop offset or after it. */
        OFFSET,
        /** The rows are full. */
        FULL,
        /** The next batch belongs to a transaction, and only committed ones are wanted. */
        TRANSACTION,
    }

    private static final int MAGIC_POS = 16;
    private static final int FRAME_MIN = 18;
    private static final int PREFIX = 12;
    private static final int HEADER = 61;
    private static final int RECORD_MIN = 7;
    private static final int HEADERS_MAX = 100_000;
    private static final int MAX_PAYLOADS = 1 << 20;

    /** The last offset that was passed. */
    public long lastOffset = UNKNOWN;

    /** Whether {@link #lastOffset} comes from a batch, and not from the caller. */
    public boolean hasLast;

    /** Batches must follow each other without gaps, in leader epoch 0, as logstore writes them. */
    public boolean contiguous;

    /** The first batch, if its predecessor is unknown, begins at this offset at the latest. */
    public long latest = Long.MAX_VALUE;

    /** Stop at batches that belong to a transaction. */
    public boolean stopsAtTransactions;

    /** Batches to leave out. */
    public AbortedRanges aborted = new AbortedRanges(new long[0][]);

    /** The base offset of the next segment: all offsets must be below it. */
    public long bound = Long.MAX_VALUE;

    /**
     * A batch is decoded only if the next one begins after its last offset. No checksum covers an offset: in a
     * log that may have gaps, nothing else confirms it.
     */
    public boolean looksBehind;

    /** Whether the bytes in the buffer are the last ones: nothing follows the last batch. */
    public boolean isEnd;

    /** Position in the buffer of the next batch. */
    public int pos;

    /** At {@link Stop#END}: the size of the next batch in bytes, as stated in it; 0 if unknown. */
    public long needed;

    /** At {@link Stop#OFFSET}: offsets of the next batch; {@link #UNKNOWN} for a wrapper that was not opened. */
    private long beyondFirst;
    private long beyond;
    /** At {@link Stop#OFFSET}: whether no offset is left between the previous batch and the stop. */
    private boolean isNextToStop;

    private final int decompressedMax;
    private final CRC32C crc32c = new CRC32C();
    private final CRC32 crc32 = new CRC32();
    private final Output output = new Output();
    /** The rows of this call point into {@link #output}. */
    private boolean isPacked;

    // Second result of reading a number: the number; the first is the position after it.
    private long number;
    // Second result of opening a wrapper.
    private long firstOfWrapper;

    public Decoder(int decompressedMax) {
        this.decompressedMax = decompressedMax;
    }

    /**
     * Decode batches from {@link #pos} on, until one of the reasons in {@link Stop}.
     *
     * <p>The rows point into {@code buffer}, or into memory of the decoder that is valid until the next
     * call; all rows of a call point into the same.
     *
     * @param limit the end of the bytes in the buffer
     * @param start records below are left out
     * @param stop records at or after are left out
     */
    public Stop decode(byte[] buffer, int limit, long start, long stop, Rows rows)
            throws InvalidBatchException {
        rows.count = 0;
        rows.data = buffer;
        output.size = 0;
        isPacked = false;
        try {
            return batches(buffer, limit, start, stop, rows);
        } finally {
            if (isPacked) {
                rows.data = output.bytes;
            }
        }
    }

    private Stop batches(byte[] buffer, int limit, long start, long stop, Rows rows)
            throws InvalidBatchException {
        while (true) {
            Stop why = frame(buffer, limit);
            if (why != null) {
                return why;
            }
            int at = pos;
            int size = PREFIX + Bytes.int32(buffer, at + 8);
            int magic = buffer[at + MAGIC_POS];
            int attributes = magic == 2 ? Bytes.int16(buffer, at + 21) : buffer[at + 17];
            int codec = attributes & 7;
            long base = Bytes.int64(buffer, at);
            long last = lastOf(buffer, at);
            boolean breaks = isGap(base);
            boolean isWrapper = magic < 2 && codec != 0;
            if (isWrapper) {
                base = Math.max(lastOffset + 1, 0); // the smallest possible one
                breaks = false;
            }
            if (!breaks && base >= stop) {
                return stopAt(isWrapper ? UNKNOWN : base, last, stop);
            }
            boolean isWanted = last >= start;
            if (isWanted && !breaks) {
                if (stopsAtTransactions && magic == 2 && (attributes & 0x30) == 0x10) {
                    return Stop.TRANSACTION;
                }
                // All rows of a call point into the same array.
                if (rows.count > 0 && (codec != 0) != isPacked) {
                    return Stop.FULL;
                }
                if (rows.count > 0 && isFull(buffer, at, magic, codec, rows)) {
                    return Stop.FULL;
                }
            }
            if (looksBehind && !isFollowed(buffer, at + size, limit, last)) {
                return Stop.END;
            }
            int before = rows.count;
            long lastBefore = lastOffset;
            try {
                if (magic == 2) {
                    batch(buffer, at, size, start, stop, rows);
                } else {
                    message(buffer, at, size, magic, start, stop, rows);
                }
            } catch (InvalidBatchException error) {
                rows.count = before; // drop the rows of an invalid batch
                throw error;
            }
            if (rows.count > 0 && codec != 0) {
                isPacked = true;
            }
            if (isWrapper && isWanted && firstOfWrapper >= stop) {
                lastOffset = lastBefore;
                return stopAt(firstOfWrapper, last, stop);
            }
            pos = at + size;
        }
    }

    /** Check that the next batch has later offsets. False: its offset is needed, and not in the buffer. */
    private boolean isFollowed(byte[] buffer, int end, int limit, long last) throws InvalidBatchException {
        if (limit - end < 8) {
            needed = isEnd ? 0 : end + 8L - pos;
            return isEnd;
        }
        if (Bytes.int64(buffer, end) <= last) {
            throw invalid("the next batch does not begin after offset " + last, pos);
        }
        return true;
    }

    private Stop stopAt(long first, long last, long stop) {
        beyondFirst = first;
        beyond = last;
        isNextToStop = lastOffset != UNKNOWN && lastOffset + 1 >= stop;
        return Stop.OFFSET;
    }

    private boolean isFull(byte[] buffer, int at, int magic, int codec, Rows rows) {
        int room = rows.capacity() - rows.count;
        if (magic < 2) {
            return codec == 0 ? room < 1 : output.size > MAX_PAYLOADS / 2 || room < rows.capacity() / 2;
        }
        return Bytes.int32(buffer, at + 57) > room || (codec != 0 && output.size > MAX_PAYLOADS);
    }

    /** The last offset of a batch of magic 2, or of a message. */
    private static long lastOf(byte[] buffer, int at) {
        long base = Bytes.int64(buffer, at);
        return buffer[at + MAGIC_POS] == 2 ? base + Bytes.int32(buffer, at + 23) : base;
    }

    /** After {@link Stop#OFFSET} without rows: whether the next batch can be one of this segment. */
    public boolean isPlausible(byte[] buffer, Rows rows) {
        if (beyondFirst != UNKNOWN) {
            return beyond < bound && !(hasLast && beyondFirst <= lastOffset);
        }
        if (contiguous) {
            return beyond < bound && !(hasLast && beyond <= lastOffset);
        }
        // The first offset of a wrapper is known only after opening it.
        long before = lastOffset;
        try {
            int size = PREFIX + Bytes.int32(buffer, pos + 8);
            message(buffer, pos, size, buffer[pos + MAGIC_POS], 0, 0, rows);
            return true;
        } catch (InvalidBatchException error) {
            return false;
        } finally {
            lastOffset = before;
        }
    }

    /** After {@link Stop#OFFSET}: the number of bytes from {@link #pos} on that {@link #isInOrder} needs. */
    public long orderBytes(byte[] buffer) {
        return PREFIX + (long) Bytes.int32(buffer, pos + 8) + FRAME_MIN;
    }

    /**
     * After {@link Stop#OFFSET}: whether the batch after the next one, if there is one, has later offsets.
     *
     * <p>No checksum covers a base offset. In a log with gaps, one that is too high looks like the end of a
     * range, and only the following batch shows that it is not.
     *
     * @param limit the end of the segment, or at least {@link #orderBytes} after {@link #pos}
     */
    public boolean isInOrder(byte[] buffer, int limit) {
        int at = pos + PREFIX + Bytes.int32(buffer, pos + 8);
        int left = limit - at;
        if (left == 0 || isNextToStop) {
            return true;
        }
        if (left < FRAME_MIN || (buffer[at + MAGIC_POS] < 2 && (buffer[at + 17] & 7) != 0)) {
            return false; // Python opens a wrapper
        }
        return Bytes.int64(buffer, at) > beyond;
    }

    /** Null if a complete batch is at pos. */
    private Stop frame(byte[] buffer, int limit) throws InvalidBatchException {
        int left = limit - pos;
        needed = 0;
        if (left < FRAME_MIN) {
            return Stop.END;
        }
        int magic = buffer[pos + MAGIC_POS];
        if (magic < 0 || magic > 2) {
            throw new InvalidBatchException("magic " + magic, pos);
        }
        int length = Bytes.int32(buffer, pos + 8);
        int least = magic == 2 ? 49 : magic == 1 ? 22 : 14;
        if (length < least) {
            for (int i = 0; i < 17; i++) {
                if (buffer[pos + i] != 0) {
                    throw new InvalidBatchException("length " + length, pos);
                }
            }
            return Stop.ZEROS;
        }
        if (length > left - PREFIX) {
            needed = PREFIX + (long) length;
            return Stop.END;
        }
        return null;
    }

    private static InvalidBatchException invalid(String reason, int at) {
        return new InvalidBatchException(reason, at);
    }

    /** Whether a batch at an offset leaves a gap in a log without gaps. */
    private boolean isGap(long first) {
        return contiguous && (lastOffset == UNKNOWN ? first > latest : first != lastOffset + 1);
    }

    private void checkOrder(long first, long last, boolean isWrapper, int at) throws InvalidBatchException {
        if (first < 0 || first <= lastOffset || last == Long.MAX_VALUE || last >= bound) {
            throw invalid("offset " + first + " to " + last + " after " + lastOffset, at);
        }
        if (!isWrapper && isGap(first)) {
            throw invalid("offset " + first + " after " + lastOffset, at);
        }
    }

    // ------------------------------------------------------------------ magic 2

    private void batch(byte[] buffer, int at, int size, long start, long stop, Rows rows)
            throws InvalidBatchException {
        crc32c.reset();
        crc32c.update(buffer, at + 21, size - 21);
        if ((int) crc32c.getValue() != Bytes.int32(buffer, at + 17)) {
            throw invalid("checksum", at);
        }
        int attributes = Bytes.int16(buffer, at + 21) & 0xffff;
        int codec = attributes & 7;
        long base = Bytes.int64(buffer, at);
        int lastDelta = Bytes.int32(buffer, at + 23);
        int count = Bytes.int32(buffer, at + 57);
        if (codec > 4) {
            throw invalid("codec " + codec, at);
        }
        if (count < 0 || count > lastDelta + 1L) {
            throw invalid(count + " records", at);
        }
        long last = base + lastDelta;
        if (lastDelta < 0 || last < base) {
            throw invalid("offset " + base + " to " + last, at);
        }
        checkOrder(base, last, false, at);
        if (contiguous && Bytes.int32(buffer, at + 12) != 0) {
            throw invalid("a leader epoch", at);
        }
        boolean isControl = (attributes & 0x20) != 0;
        boolean isAborted =
                (attributes & 0x30) == 0x10 && aborted.has(Bytes.int64(buffer, at + 43), base);
        if (last >= start && !isControl && !isAborted) {
            byte[] data = buffer;
            int begin = at + HEADER;
            int end = at + size;
            if (codec != 0 && count > 0) { // compaction leaves the header of an empty batch
                begin = output.size;
                output.begin(decompressedMax);
                Decompressor.decompress(codec, buffer, at + HEADER, size - HEADER, output, at);
                data = output.bytes;
                end = output.size;
            }
            if (count > (end - begin) / RECORD_MIN) {
                throw invalid(count + " records in " + (end - begin) + " bytes", at);
            }
            rows.reserve(rows.count + count);
            boolean appendTime = (attributes & 8) != 0;
            long baseTime = Bytes.int64(buffer, at + (appendTime ? 35 : 27));
            records(data, begin, end, count, base, lastDelta, baseTime, appendTime, start, stop, rows, at);
        }
        lastOffset = last;
        hasLast = true;
    }

    private void records(
            byte[] data,
            int begin,
            int end,
            int count,
            long base,
            int lastDelta,
            long baseTime,
            boolean appendTime,
            long start,
            long stop,
            Rows rows,
            int at)
            throws InvalidBatchException {
        int p = begin;
        int n = rows.count;
        int before = -1;
        byte type = (byte) (appendTime ? 1 : 0);
        for (int i = 0; i < count; i++) {
            long read = varint(data, p, end, at);
            int length = (int) read;
            p = (int) (read >> 32);
            if (length < RECORD_MIN - 1 || length > end - p) {
                throw invalid("length of a record", at);
            }
            int recordEnd = p + length;
            p = varlong(data, p + 1, recordEnd, at);
            long timeDelta = number;
            read = varint(data, p, recordEnd, at);
            int delta = (int) read;
            p = (int) (read >> 32);
            read = varint(data, p, recordEnd, at);
            int keyLength = (int) read;
            int keyPos = (int) (read >> 32);
            if (keyLength < -1 || keyLength > recordEnd - keyPos) {
                throw invalid("length of a key", at);
            }
            read = varint(data, keyPos + Math.max(keyLength, 0), recordEnd, at);
            int valueLength = (int) read;
            int valuePos = (int) (read >> 32);
            if (valueLength < -1 || valueLength > recordEnd - valuePos) {
                throw invalid("length of a value", at);
            }
            read = varint(data, valuePos + Math.max(valueLength, 0), recordEnd, at);
            int headers = (int) read;
            int headerPos = (int) (read >> 32);
            p = headers == 0 ? headerPos : skipHeaders(data, headerPos, recordEnd, headers, at);
            if (p != recordEnd) {
                throw invalid("a record does not fill its length", at);
            }
            if (delta <= before || delta > lastDelta) {
                throw invalid("offset delta " + delta, at);
            }
            before = delta;
            long offset = base + delta;
            if (offset >= start && offset < stop) {
                rows.offset[n] = offset;
                if (rows.keeps(Rows.TIMES)) {
                    rows.timestamp[n] = appendTime ? baseTime : baseTime + timeDelta;
                    rows.timestampType[n] = type;
                }
                if (rows.keeps(Rows.KEYS)) {
                    rows.keyPos[n] = keyPos;
                    rows.keyLength[n] = keyLength;
                }
                if (rows.keeps(Rows.VALUES)) {
                    rows.valuePos[n] = valuePos;
                    rows.valueLength[n] = valueLength;
                }
                if (rows.keeps(Rows.HEADERS)) {
                    rows.headerPos[n] = headerPos;
                    rows.headerCount[n] = headers;
                }
                n++;
            }
        }
        if (p != end) {
            throw invalid("bytes after the last record", at);
        }
        rows.count = n;
    }

    private int skipHeaders(byte[] data, int from, int end, int count, int at) throws InvalidBatchException {
        int p = from;
        if (count < 0 || count > (end - p) / 2 || count > HEADERS_MAX) {
            throw invalid(count + " headers", at);
        }
        for (int i = 0; i < 2 * count; i++) {
            long read = varint(data, p, end, at);
            int length = (int) read;
            p = (int) (read >> 32);
            if (length < ((i & 1) == 0 ? 0 : -1) || length > end - p) {
                throw invalid("length in a header", at);
            }
            p += Math.max(length, 0);
        }
        return p;
    }

    /** A number of 32 bits in the lower half, the position after it in the upper one. */
    private static long varint(byte[] data, int from, int end, int at) throws InvalidBatchException {
        if (from < end) {
            int b = data[from];
            if (b >= 0) {
                return packed(from + 1, b);
            }
        }
        return longVarint(data, from, end, at);
    }

    private static long longVarint(byte[] data, int from, int end, int at) throws InvalidBatchException {
        int p = from;
        int value = 0;
        for (int shift = 0; shift <= 28 && p < end; shift += 7) {
            int b = data[p++];
            value |= (b & 0x7f) << shift;
            if (b >= 0) {
                return packed(p, value);
            }
        }
        throw invalid("a number", at);
    }

    private static long packed(int next, int value) {
        return (long) next << 32 | ((value >>> 1) ^ -(value & 1)) & 0xffffffffL;
    }

    /** Read a number of 64 bits into {@link #number}; returns the position after it. */
    private int varlong(byte[] data, int from, int end, int at) throws InvalidBatchException {
        if (from < end && data[from] >= 0) {
            int b = data[from];
            number = (b >>> 1) ^ -(b & 1);
            return from + 1;
        }
        int p = from;
        long value = 0;
        for (int shift = 0; shift <= 63 && p < end; shift += 7) {
            byte b = data[p++];
            value |= (b & 0x7fL) << shift;
            if (b >= 0) {
                number = (value >>> 1) ^ -(value & 1);
                return p;
            }
        }
        throw invalid("a number", at);
    }

    // ------------------------------------------------------------------ magic 0 and 1

    private void message(byte[] buffer, int at, int size, int magic, long start, long stop, Rows rows)
            throws InvalidBatchException {
        checkMessage(buffer, at, size, at);
        int codec = buffer[at + 17] & 7;
        long offset = Bytes.int64(buffer, at);
        if (codec > 3) {
            throw invalid("codec " + codec, at);
        }
        int keyAt = at + (magic == 0 ? 18 : 26);
        int keyLength = split(buffer, keyAt, at + size, at);
        int valueAt = keyAt + 4 + Math.max(keyLength, 0);
        checkOrder(offset, offset, codec != 0, at);
        if (offset >= start) {
            if (codec != 0) {
                wrapper(buffer, at, magic, codec, valueAt, start, stop, rows);
            } else if (offset < stop) {
                rows.reserve(rows.count + 1);
                put(rows, buffer, at, magic, offset, time(buffer, at, magic), buffer[at + 17] & 8, keyAt);
            }
        }
        lastOffset = offset;
        hasLast = true;
    }

    private void checkMessage(byte[] data, int pos, int size, int at) throws InvalidBatchException {
        crc32.reset();
        crc32.update(data, pos + MAGIC_POS, size - MAGIC_POS);
        if ((int) crc32.getValue() != Bytes.int32(data, pos + PREFIX)) {
            throw invalid("checksum", at);
        }
    }

    /** The length of the key at {@code keyAt}; key and value must fill the message. */
    private static int split(byte[] data, int keyAt, int end, int at) throws InvalidBatchException {
        int room = end - keyAt - 8;
        int keyLength = Bytes.int32(data, keyAt);
        if (keyLength < -1 || keyLength > room) {
            throw invalid("length of a key", at);
        }
        int left = room - Math.max(keyLength, 0);
        int valueLength = Bytes.int32(data, keyAt + 4 + Math.max(keyLength, 0));
        if (valueLength != left && !(valueLength == -1 && left == 0)) {
            throw invalid("length of a value", at);
        }
        return keyLength;
    }

    private static long time(byte[] data, int pos, int magic) {
        return magic == 0 ? Rows.NO_TIMESTAMP : Bytes.int64(data, pos + 18);
    }

    private static void put(
            Rows rows, byte[] data, int pos, int magic, long offset, long time, int appendTime, int keyAt) {
        int n = rows.count++;
        rows.offset[n] = offset;
        if (rows.keeps(Rows.TIMES)) {
            rows.timestamp[n] = time;
            rows.timestampType[n] = (byte) (magic == 0 ? -1 : appendTime != 0 ? 1 : 0);
        }
        int keyLength = Bytes.int32(data, keyAt);
        if (rows.keeps(Rows.KEYS)) {
            rows.keyPos[n] = keyAt + 4;
            rows.keyLength[n] = keyLength;
        }
        if (rows.keeps(Rows.VALUES)) {
            int valueAt = keyAt + 4 + Math.max(keyLength, 0);
            rows.valuePos[n] = valueAt + 4;
            rows.valueLength[n] = Bytes.int32(data, valueAt);
        }
        if (rows.keeps(Rows.HEADERS)) {
            rows.headerPos[n] = pos;
            rows.headerCount[n] = 0;
        }
    }

    private void wrapper(
            byte[] buffer, int at, int magic, int codec, int valueAt, long start, long stop, Rows rows)
            throws InvalidBatchException {
        if (magic == 0 && codec == 3) {
            throw invalid("lz4 of magic 0", at); // the frame has a different header checksum: left to Python
        }
        long wrapperOffset = Bytes.int64(buffer, at);
        int length = Bytes.int32(buffer, valueAt);
        if (length < 0) {
            throw invalid("a wrapper without content", at);
        }
        int begin = output.size;
        output.begin(decompressedMax);
        Decompressor.decompress(codec, buffer, valueAt + 4, length, output, at);
        byte[] data = output.bytes;
        int end = output.size;
        int count = 0;
        long lastInner = -1;
        for (int p = begin; p < end; ) {
            if (end - p < FRAME_MIN) {
                throw invalid("the end of a wrapper", at);
            }
            int size = Bytes.int32(data, p + 8);
            if (data[p + MAGIC_POS] != magic || size < (magic == 0 ? 14 : 22) || size > end - p - PREFIX) {
                throw invalid("a message in a wrapper", at);
            }
            lastInner = Bytes.int64(data, p);
            count++;
            p += PREFIX + size;
        }
        if (count == 0) {
            throw invalid("an empty wrapper", at);
        }
        long shift = 0;
        if (wrapperOffset != 0) {
            if (lastInner < 0 || wrapperOffset < lastInner) {
                throw invalid("offset " + lastInner + " in a wrapper", at);
            }
            shift = magic == 1 ? wrapperOffset - lastInner : 0;
        }
        if (contiguous && lastInner + shift != wrapperOffset) {
            throw invalid("offset " + lastInner + " in a wrapper", at);
        }
        rows.reserve(rows.count + count);
        int appendTime = buffer[at + 17] & 8;
        long wrapperTime = time(buffer, at, magic);
        long before = -1;
        for (int p = begin; p < end; ) {
            int size = PREFIX + Bytes.int32(data, p + 8);
            checkMessage(data, p, size, at);
            if ((data[p + 17] & 7) != 0) {
                throw invalid("a wrapper in a wrapper", at);
            }
            int keyAt = p + (magic == 0 ? 18 : 26);
            split(data, keyAt, p + size, at);
            long inner = Bytes.int64(data, p);
            if (inner <= before || inner > lastInner) {
                throw invalid("offset " + inner + " in a wrapper", at);
            }
            long offset = inner + shift;
            if (before < 0) {
                firstOfWrapper = offset;
            }
            // The first offset is known only now: it must be after the last one.
            if (before < 0 && (offset <= lastOffset || isGap(offset))) {
                throw invalid("offset " + offset + " after " + lastOffset, at);
            }
            if (offset >= start && offset < stop) {
                long time = magic == 1 && appendTime != 0 ? wrapperTime : time(data, p, magic);
                put(rows, data, p, magic, offset, time, appendTime, keyAt);
            }
            before = inner;
            p += size;
        }
    }
}
