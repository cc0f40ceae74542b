package logstore.format;

/**
 * A batch that the decoder does not accept: damaged, or written by an unknown program.
 *
 * <p>It is not final: the reader asks logstore's Python, which decides whether it is damage.
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
