package logstore.format;

import java.util.Arrays;

/** Bytes of decompressed batches, one after the other, in reused memory. */
final class Output {
    byte[] bytes = new byte[1 << 16];
    int size;
    /** The limit of the current batch. */
    private int end;

    /** Begin a batch of at most {@code limit} bytes at {@link #size}. */
    void begin(int limit) {
        end = (int) Math.min((long) size + limit, Integer.MAX_VALUE - 16);
    }

    /** Make room for {@code wanted} bytes at {@link #size}; returns the available number. */
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
