package logstore.spark;

/** An error that logstore's Python reports. */
public final class LogstoreException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public LogstoreException(String message) {
        super(message);
    }

    public LogstoreException(String message, Throwable cause) {
        super(message, cause);
    }
}
