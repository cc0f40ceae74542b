package logstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * The files that change before a log is cut, and their state when the task was planned.
 *
 * <p>As long as they are the same, the bytes of the log below its planned end are the same.
 */
final class Guard implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final int FIELDS = 4;

    private final String[] paths;
    /** For each file: inode, time of modification and of change in ns, bytes; -1 if it does not count. */
    private final long[] stamps;

    Guard(JsonNode node) {
        paths = new String[node.size()];
        stamps = new long[FIELDS * paths.length];
        for (int i = 0; i < paths.length; i++) {
            JsonNode entry = node.get(i);
            paths[i] = entry.get("path").asText();
            for (int field = 0; field < FIELDS; field++) {
                stamps[FIELDS * i + field] = entry.get("stamp").get(field).asLong();
            }
        }
    }

    /** Whether all files are certainly unchanged. */
    boolean holds() {
        for (int i = 0; i < paths.length; i++) {
            try {
                Map<String, Object> now = Files.readAttributes(
                        Path.of(paths[i]),
                        "unix:ino,size,lastModifiedTime,ctime",
                        LinkOption.NOFOLLOW_LINKS);
                if (!isSame(i, 0, (Long) now.get("ino"))
                        || !isSame(i, 1, nanos(now.get("lastModifiedTime")))
                        || !isSame(i, 2, nanos(now.get("ctime")))
                        || !isSame(i, 3, (Long) now.get("size"))) {
                    return false;
                }
            } catch (NoSuchFileException error) {
                if (stamps[FIELDS * i] != 0) { // the inode of a missing file
                    return false;
                }
            } catch (IOException | RuntimeException error) {
                return false;
            }
        }
        return true;
    }

    private boolean isSame(int file, int field, long now) {
        long then = stamps[FIELDS * file + field];
        return then == -1 || then == now;
    }

    private static long nanos(Object time) {
        return ((FileTime) time).to(TimeUnit.NANOSECONDS);
    }
}
