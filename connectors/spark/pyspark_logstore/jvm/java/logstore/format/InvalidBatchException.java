package logstore.format;

/**
 * A batch that the decoder does not accept: damaged, or written by a program that it does not know.
 *
 * <p>It is no verdict: the reader asks logstore's Python, which decides what the bytes are.
 */
public final class InvalidBatchException extends Exception {
    private static final long serialVersionUID = 1L;

    /** Position of the batch in the buffer. */
    public final int position;

    public InvalidBatchException(String reason, int position) {
        super(reason, null, false, false);
        this.position = position;
    }
}
