package logstore.format;

import java.io.Serializable;
import java.util.Arrays;

/** Aborted transactions: batches of a producer, from an offset to the marker that ends them. */
public final class AbortedRanges implements Serializable {
    private static final long serialVersionUID = 1L;

    /** Rows of producer, first offset, last offset (inclusive); sorted by producer, then by offset. */
    private final long[][] ranges;

    public AbortedRanges(long[][] ranges) {
        this.ranges = ranges.clone();
        Arrays.sort(this.ranges, AbortedRanges::compare);
    }

    private static int compare(long[] a, long[] b) {
        return a[0] != b[0] ? Long.compare(a[0], b[0]) : Long.compare(a[1], b[1]);
    }

    /** Whether the transactional batch of a producer at an offset was aborted. */
    boolean has(long producer, long offset) {
        if (ranges.length == 0) {
            return false;
        }
        int at = Arrays.binarySearch(ranges, new long[] {producer, offset}, AbortedRanges::compare);
        int before = at >= 0 ? at : -at - 2; // the last range that begins at or before the offset
        return before >= 0 && ranges[before][0] == producer && offset <= ranges[before][2];
    }
}
