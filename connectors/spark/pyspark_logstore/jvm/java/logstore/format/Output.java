package logstore.format;

import java.util.Arrays;

/** Bytes of decompressed batches, one after the other, in memory that is used again. */
final class Output {
    byte[] bytes = new byte[1 << 16];
    int size;
    /** How far the batch in work may reach. */
    private int end;

    /** A batch of at most {@code limit} bytes begins at {@link #size}. */
    void begin(int limit) {
        end = (int) Math.min((long) size + limit, Integer.MAX_VALUE - 16);
    }

    /** The number of bytes at {@link #size} that there is room for, at least {@code wanted}. */
    int reserve(int wanted, int position) throws InvalidBatchException {
        if (wanted > end - size) {
            throw new InvalidBatchException("the batch decompresses to more than the limit", position);
        }
        if (wanted > bytes.length - size) {
            long doubled = Math.max(2L * bytes.length, (long) size + wanted);
            bytes = Arrays.copyOf(bytes, (int) Math.min(doubled, Integer.MAX_VALUE - 16));
        }
        return Math.min(bytes.length, end) - size;
    }
}
