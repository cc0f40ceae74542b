package logstore.format;

import java.io.Serializable;
import java.util.Arrays;

/** The batches of aborted transactions: of a producer, from an offset to the marker that ends it. */
public final class AbortedRanges implements Serializable {
    private static final long serialVersionUID = 1L;

    /** Each as producer, first offset, last offset (inclusive); by producer, then by offset. */
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
        int before = at >= 0 ? at : -at - 2; // the last that begins at the offset or before it
        return before >= 0 && ranges[before][0] == producer && offset <= ranges[before][2];
    }
}
